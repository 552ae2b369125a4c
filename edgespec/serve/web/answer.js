// An answer as the server streams it.

/** Yields the events of a response. */
async function* events(response) {
  let rest = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\n\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
  }
}

/** What the deltas of an answer add up to. */
class Answer {
  text = "";
  reasoning = "";
  calls = [];
  finish = null;
  looped = false;  // whether it was ended since it repeats itself
  leftOut = 0;  // how many of the oldest messages were not read

  /** Returns what goes on where an earlier message ended. */
  static from(message) {
    return Object.assign(new Answer(), {text: message.content, reasoning: message.reasoning_content ?? ""});
  }

  add(delta) {
    this.text += delta.content ?? "";
    this.reasoning += delta.reasoning_content ?? "";
    for (const {index, id, function: piece} of delta.tool_calls ?? []) {
      const call = this.calls[index] ??= {id, name: "", text: ""};
      call.name += piece.name ?? "";
      call.text += piece.arguments ?? "";
    }
  }

  get empty() {
    return !this.text && !this.reasoning && !this.calls.length;
  }

  /** The calls that did not end in their midst. */
  get complete() {
    return this.calls.filter((call) => isObject(parsed(call.text)));
  }

  /** The message that goes back to the server with the next question. */
  get message() {
    const message = {role: "assistant", content: this.text};
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.complete.length) {
      message.tool_calls = this.complete.map(
        ({id, name, text}) => ({id, type: "function", function: {name, arguments: text}}));
    }
    return message;
  }
}

/** Returns the value of a JSON text; undefined if it is none. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns a JSON text with a line for each value. Numbers and strings stay as they were written. */
function indented(json) {
  const tokens = json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let shown = "", depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  tokens.forEach((token, place) => {
    const opens = /^[{[]/.test(token), closes = /^[}\]]/.test(token);
    const bare = closes && /^[{[]/.test(tokens[place - 1]);  // an empty object or list
    if (opens) depth += 1;
    if (closes) depth -= 1;
    if (closes && !bare) shown += line();
    shown += token === ":" ? ": " : token;
    if (token === "," || (opens && !/^[}\]]/.test(tokens[place + 1]))) shown += line();
  });
  return shown;
}
