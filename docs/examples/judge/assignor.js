// An assignor that gives the partitions of each topic to its subscribers in turn.
//
//     zkconsumer judge --assignor docs/examples/judge/assignor.js
"use strict";
const readline = require("readline");

function assignment(topics, members) {
  const found = Object.fromEntries(Object.keys(members).map((name) => [name, {}]));
  for (const [topic, count] of Object.entries(topics)) {
    const names = Object.keys(members).filter((name) => members[name].topics.includes(topic));
    names.sort();
    for (let one = 0; names.length && one < count; one++)
      (found[names[one % names.length]][topic] ??= []).push(one);
  }
  return found;
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { topics, members } = JSON.parse(line);
  console.log(JSON.stringify({ type: "assignment", members: assignment(topics, members) }));
  console.log(JSON.stringify({ type: "done" }));
});
