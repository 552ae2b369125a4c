// Files that go before a message: texts, and images where the model reads them.

const MOST_BYTES = 1 << 20, MOST_IMAGE_BYTES = 16 << 20;
let attached = [];

/** Reads files, and shows them above the message. */
async function attach(files) {
  for (const file of files) {
    if (file.type.startsWith("image/")) {
      if (!seesImages) complain(`${file.name} is an image, and the model reads text alone.`);
      else if (file.size > MOST_IMAGE_BYTES) complain(`${file.name} is larger than 16 MiB: give a smaller one.`);
      else attached.push({name: file.name, image: await dataUrl(file)});
      continue;
    }
    const text = file.size <= MOST_BYTES ? await file.text() : "";
    if (file.size > MOST_BYTES) complain(`${file.name} is larger than 1 MiB: give a part of it.`);
    else if (/[\0\ufffd]/.test(text)) complain(`${file.name} is no text in UTF-8.`);
    else attached.push({name: file.name, text});
  }
  showAttached();
  at("text").focus();
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
document.body.ondragover = (event) => event.preventDefault();
document.body.ondrop = (event) => {
  event.preventDefault();
  attach([...event.dataTransfer.files]);
};
