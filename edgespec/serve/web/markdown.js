// Answers as the server renders them. Elements and classes that it does not make are left out.

const PAUSE = 80;  // milliseconds between renderings of an answer that grows
const ELEMENTS = new Set(["P", "BR", "HR", "H3", "H4", "H5", "H6", "UL", "OL", "LI", "BLOCKQUOTE", "EM", "STRONG", "S",
  "CODE", "PRE", "FIGURE", "FIGCAPTION", "BUTTON", "SPAN", "DIV", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "A",
  "math", "menclose", "mfrac", "mi", "mn", "mo", "mover", "mpadded", "mphantom", "mroot", "mrow", "mspace", "msqrt", "mstyle",
  "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"]);
const ATTRIBUTES = new Set(["class", "start", "type", "href", "target", "rel", "role", "aria-label",
  "accent", "accentunder", "columnalign", "columnlines", "depth", "display", "displaystyle", "fence", "form", "height",
  "largeop", "linethickness", "lspace", "mathvariant", "maxsize", "minsize", "movablelimits", "notation", "rspace",
  "scriptlevel", "separator", "stretchy", "voffset", "width"]);
const FOLLOWED = /^(https?:|mailto:)/i;  // addresses of links

/** Returns the blocks of a text; null if the server does not render it. */
async function rendered(text) {
  try {
    const response = await fetch("render", {method: "POST", headers: headers(), body: JSON.stringify({text})});
    return response.ok ? (await response.json()).blocks : null;
  } catch {
    return null;
  }
}

/** Returns the elements of a block. */
function elements(html) {
  const {content} = make("template", {innerHTML: html});
  for (const each of content.querySelectorAll("*")) {
    if (!ELEMENTS.has(each.tagName)) each.replaceWith(each.textContent);
    else for (const {name, value} of [...each.attributes]) {
      if (!ATTRIBUTES.has(name) || (name === "href" && !FOLLOWED.test(value))) each.removeAttribute(name);
    }
  }
  return content;
}

/** A text that grows: only its last block is rendered again. */
class Rendered {
  #begin = 0;  // of the last block in the text
  #shown = null;  // the text that was rendered last
  #work = null;

  constructor(place) {
    this.text = "";
    this.tail = make("div");
    place.append(this.tail);
  }

  add(piece) {
    this.text += piece.replaceAll("\r", "");
    if (this.#shown === null) this.#showPlain(this.text);
    this.#work ??= this.#render();
  }

  /** Waits until all of the text is shown. */
  async end() {
    await this.#work;
  }

  async #render() {
    while (this.#shown !== this.text) {
      const text = this.text, blocks = await rendered(text.slice(this.#begin));
      follow(() => this.#show(text, blocks));
      if (this.#shown !== this.text) await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
    this.#work = null;
  }

  #show(text, blocks) {
    this.#shown = text;
    const rest = text.slice(this.#begin);
    if (blocks === null) return this.#showPlain(rest);
    const last = blocks.pop();
    for (const {html} of blocks) this.tail.before(elements(html));
    this.tail.replaceChildren(...last ? [elements(last.html)] : []);
    const before = last ? rest.split("\n").slice(0, last.line) : [];
    this.#begin += before.reduce((sum, line) => sum + line.length + 1, 0);
  }

  #showPlain(text) {
    this.tail.replaceChildren(make("p", {className: "plain"}, text));
  }
}
