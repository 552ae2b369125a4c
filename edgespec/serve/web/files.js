// Files that go before a message: texts, PDF files as texts, and images where the model reads them.

const MOST_BYTES = 1 << 20, MOST_IMAGE_BYTES = 16 << 20;
let attached = [];

/** Reads files, and shows them above the message; what is refused is told there, too. */
async function attach(files) {
  const problems = [];
  for (const file of files) {
    try {
      attached.push(await read(file));
    } catch (error) {
      problems.push(`${file.name} ${error.message}`);
    }
  }
  showProblem(problems.join("\n"));
  showAttached();
  at("text").focus();
}

/** Returns what goes before a message. Throws an error that says what a file is. */
async function read(file) {
  const {name} = file;
  if (file.type.startsWith("image/")) {
    if (!seesImages) throw new Error("is an image, and the model reads text alone.");
    if (file.size > MOST_IMAGE_BYTES) throw new Error("is larger than 16 MiB: give a smaller one.");
    return {name, image: await dataUrl(file)};
  }
  if (file.type === "application/pdf" || name.toLowerCase().endsWith(".pdf")) {
    const found = await pdfText(file);
    return {name: found.read < found.pages ? `${name} (${found.read} of ${found.pages} pages)` : name, text: found.text};
  }
  if (file.size > MOST_BYTES) throw new Error("is larger than 1 MiB: give a part of it.");
  const text = await file.text();
  if (/[\0\ufffd]/.test(text)) throw new Error("is no text in UTF-8.");
  return {name, text};
}

/** Has the server read a PDF file: its text, and how many of its pages that is. */
async function pdfText(file) {
  if (file.size > MOST_IMAGE_BYTES) throw new Error("is larger than 16 MiB: give some of its pages.");
  const data = (await dataUrl(file)).split(",")[1];
  tell(`${file.name} is being read …`);
  try {
    const response = await fetch("pdf", {method: "POST", headers: headers(), body: JSON.stringify({data})});
    const answer = await response.json();
    if (!response.ok) throw new Error(`is not attached: ${answer.error.message}`);
    return answer;
  } finally {
    tell("");
  }
}

/** Tells what is wrong with files, until others are attached or a message is sent. */
function showProblem(text) {
  at("files-problem").textContent = text;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function showAttached() {
  at("files").replaceChildren(...attached.map((file) => {
    const remove = make("button", {type: "button", ariaLabel: `Remove ${file.name}`}, "✕");
    remove.onclick = () => {
      showProblem("");
      attached = attached.filter((each) => each !== file);
      showAttached();
      at("text").focus();
    };
    return make("li", {}, file.name, " ", remove);
  }));
}

/** Returns a message with texts of files before it, each in a fence that it does not hold. */
function withFiles(text, files) {
  const parts = files.filter((file) => !file.image).map((file) => {
    const ticks = Math.max(2, ...(file.text.match(/`+/g) ?? []).map((each) => each.length)) + 1;
    return `${file.name}:\n${"`".repeat(ticks)}\n${file.text}\n${"`".repeat(ticks)}\n\n`;
  });
  return parts.join("") + text;
}

/** Returns the message of a node as the server takes it, with its images before it. */
function sentAs({message, files = []}) {
  const images = files.filter((file) => file.image);
  if (!images.length) return message;
  const parts = images.map(({image}) => ({type: "image_url", image_url: {url: image}}));
  return {...message, content: [...parts, {type: "text", text: message.content}]};
}

/** Asks for files; hands them to `take`. */
function choose(take, properties) {
  const field = make("input", {type: "file", ...properties});
  field.onchange = () => take([...field.files]);
  field.click();
}

at("attach").onclick = () => choose(attach, {multiple: true});
document.body.ondragover = (event) => {
  event.preventDefault();
  document.body.classList.toggle("dragged", event.dataTransfer.types.includes("Files"));
};
document.body.ondragleave = (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dragged");
};
document.body.ondrop = (event) => {
  event.preventDefault();
  document.body.classList.remove("dragged");
  attach([...event.dataTransfer.files]);
};
document.onpaste = (event) => {
  const files = [...event.clipboardData.files];
  if (!files.length) return;  // a text goes where the cursor is
  event.preventDefault();
  attach(files);
};
