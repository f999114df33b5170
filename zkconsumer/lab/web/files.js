// Trace files on the visitor's computer, which the static site opens.

const MAX_MB = 32;

let input; // kept, so that the browser does not remove it while the user chooses

export function chooseFiles(open) {
  input = document.createElement("input");
  input.type = "file";
  input.multiple = true;
  input.onchange = () => open([...input.files]);
  input.click();
}

export function acceptDrops(open) {
  addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    open([...event.dataTransfer.files]);
  });
}

// Return [name, text] of each file. The message of an error is one sentence for the user.
export async function readFiles(files) {
  const size = files.reduce((sum, file) => sum + file.size, 0) / 2 ** 20;
  const names = files.map((file) => file.name).join(", ");
  if (size > MAX_MB) throw new Error(`the trace has more than ${MAX_MB} MB (${names}): open it with \`zkconsumer lab --trace\``);
  return Promise.all(files.map(async (file) => [file.name, await file.text().catch(() => unreadable(file))]));
}

function unreadable({ name }) {
  throw new Error(`the browser cannot read the file (${name}): open an existing file, not a directory`);
}
