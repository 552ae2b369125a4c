// Chats in files: our own, and those that ChatGPT and Open WebUI export.

const strings = (...values) => values.find((value) => isText(value) && value) ?? "";

/** Returns what a message of ChatGPT's is to us; only its parent if nobody said it to the other. */
function ofChatGpt({parent, message}) {
  const {author, content, recipient = "all", metadata} = message ?? {};
  if (recipient !== "all" || metadata?.is_visually_hidden_from_conversation) return {parent};
  const parts = ["text", "multimodal_text"].includes(content?.content_type) ? content.parts ?? [] : [];
  return {parent, role: author?.role, content: parts.filter(isText).join("\n\n")};
}

/** Returns what a message of Open WebUI's is to us. Its reasoning lies folded in the text. */
function ofOpenWebUi({parentId, role, content, files}) {
  let reasoning = "";
  const text = strings(content).replace(/<details type="reasoning"[^>]*>\s*(?:<summary>.*?<\/summary>)?(.*?)<\/details>\s*/gs, (_, inside) => {
    reasoning += inside.trim().replace(/^(?:&gt;|>) ?/gm, "");
    return "";
  });
  const images = (Array.isArray(files) ? files : []).filter(({type, url}) => type === "image" && String(url).startsWith("data:image/"));
  return {parent: parentId, role, content: text, reasoning, files: images.map(({url, name}) => ({name: strings(name, "image"), image: url}))};
}

/** Returns the nodes of messages by their ids, and at which of them each id is; what has no text is passed over. */
function nodesOf(messages) {
  const below = new Map(), nodes = [], places = new Map();
  for (const [id, {parent}] of messages) {
    const above = messages.has(parent) ? parent : null;
    below.set(above, [...below.get(above) ?? [], id]);
  }
  const left = (below.get(null) ?? []).map((id) => [id, null]).reverse();
  while (left.length) {
    const [id, parent] = left.pop(), {role, content, reasoning, files} = messages.get(id);
    let place = parent;
    const goesOn = role === "assistant" && nodes[parent]?.message.role === role && below.get(messages.get(id).parent)?.length === 1;
    if (goesOn && content) nodes[parent].message.content += `\n\n${content}`;  // between calls of tools
    else if (["user", "assistant"].includes(role) && (content || files?.length)) {
      const message = {role, content, ...(reasoning && {reasoning_content: reasoning})};
      place = nodes.push({parent, message, finish: "stop", ...(files?.length && {files, text: content})}) - 1;
    }
    places.set(id, place);
    left.push(...(below.get(id) ?? []).map((each) => [each, place]).reverse());
  }
  return {nodes, places};
}

/** Returns a conversation of another program's messages by their ids. */
function grown({id, title, seconds, messages, current}) {
  const {nodes, places} = nodesOf(messages);
  return {
    id: strings(id).replace(/[^\w-]/g, "").slice(0, 64) || newId(), title: strings(title).slice(0, 200),
    changed: Number.isFinite(seconds) ? seconds * 1000 : 0, nodes, leaf: places.get(current) ?? nodes.length - 1,
  };
}

const byId = (messages, read) => new Map(Object.entries(messages).map(([id, each]) => [id, read(each)]));

/** Returns a conversation of a file; nothing if it is none that is known. */
function readTalk(value) {
  if (isObject(value?.mapping)) {  // ChatGPT's
    return grown({
      id: value.conversation_id ?? value.id, title: value.title, seconds: value.update_time,
      messages: byId(value.mapping, ofChatGpt), current: value.current_node,
    });
  }
  const chat = value?.chat ?? value;
  if (isObject(chat?.history?.messages)) {  // Open WebUI's
    return grown({
      id: value.id, title: strings(value.title, chat.title), seconds: value.updated_at,
      messages: byId(chat.history.messages, ofOpenWebUi), current: chat.history.currentId,
    });
  }
}

/** Returns the conversations of a file's text. Throws an error that says what is wrong with it. */
function readTalks(text) {
  const found = readJson(text);
  let talks = [];
  try {
    talks = found?.edgespec_chats === 1 ? found.talks : [found].flat().map(readTalk).filter((talk) => talk?.nodes.length);
  } catch {}  // values are of other types than these programs write
  if (!Array.isArray(talks) || !talks.every(isTalk) || (!talks.length && found?.edgespec_chats !== 1)) {
    throw new Error("It holds no chats of edgespec, ChatGPT or Open WebUI.");
  }
  return talks;
}
