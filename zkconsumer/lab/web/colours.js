// One colour for each member. Eight colours that colour-blind people distinguish; every further
// eight members get a pattern too, and each cell shows its owner's number, so colour is never the
// only signal.

const COLOURS = [
  ["#0072b2", "#ffffff"], ["#e69f00", "#000000"], ["#009e73", "#000000"], ["#cc79a7", "#000000"],
  ["#56b4e9", "#000000"], ["#f0e442", "#000000"], ["#5b0f6b", "#ffffff"], ["#7f4f24", "#ffffff"],
];
export const PATTERNS = 8;

export function paint(who) {
  if (who < 0) return { fill: "#5f646d", ink: "#ffffff", pattern: 0 };
  const [fill, ink] = COLOURS[who % COLOURS.length];
  return { fill, ink, pattern: Math.floor(who / COLOURS.length) % PATTERNS };
}
