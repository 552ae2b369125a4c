// Conversations, which the browser keeps in a database of this server's own.
// A conversation is a tree: {id, title, model, changed, leaf, nodes: [{parent, message, finish, files}]}.
// A node's parent is the place of the one before in `nodes`, or null; an edited message or an answer
// that was tried again has siblings. What is shown goes from the root to `leaf`.

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (each) => each.toString(16)).join("");

const newTalk = () => ({id: newId(), title: "", changed: 0, leaf: null, nodes: []});

/** Returns the places of the nodes from the root to one. */
function path(talk, place = talk.leaf) {
  const found = [];
  for (; place !== null; place = talk.nodes[place].parent) found.unshift(place);
  return found;
}

/** Returns the places of all nodes with the same parent as one, itself included. */
function siblings(talk, place) {
  const {parent} = talk.nodes[place];
  return talk.nodes.flatMap((node, other) => node.parent === parent ? [other] : []);
}

/** Adds a node below another, and lets the conversation end there. */
function grow(talk, parent, message, more = {}) {
  talk.leaf = talk.nodes.push({parent, message, ...more}) - 1;
  return talk.leaf;
}

/** Lets the conversation go through a node, and on from there as it last did. */
function goThrough(talk, place) {
  talk.leaf = place;
  for (;;) {
    const next = talk.nodes.findLastIndex((node) => node.parent === talk.leaf);
    if (next < 0) return;
    talk.leaf = next;
  }
}

const isText = (value) => typeof value === "string";

const isMessage = ({role, content, reasoning_content = "", tool_calls = []}) =>
  ["user", "assistant", "tool"].includes(role) && isText(content) && isText(reasoning_content) && Array.isArray(tool_calls)
  && tool_calls.every((call) => isText(call?.id) && isText(call.function?.name) && isText(call.function.arguments));

const isFile = (file) => isText(file?.name) && (file.image === undefined ? isText(file.text) : String(file.image).startsWith("data:image/"));

/** Whether a value that was imported is a conversation. */
function isTalk(value) {
  const place = (each, most) => each === null || (Number.isInteger(each) && each >= 0 && each < most);
  return isObject(value) && /^[\w-]{1,64}$/.test(value.id) && isText(value.title) && isText(value.model ?? "")
    && Number.isFinite(value.changed) && Array.isArray(value.nodes) && place(value.leaf, value.nodes.length)
    && value.nodes.every((node, number) => isObject(node) && place(node.parent, number)
      && isObject(node.message) && isMessage(node.message) && isText(node.text ?? "")
      && Array.isArray(node.files ?? []) && (node.files ?? []).every(isFile));
}

/** All conversations; where the browser keeps nothing, they last as long as the page. */
class Store {
  #base = null;
  #tabs = new BroadcastChannel("edgespec.talks");  // ids of what was changed
  #removed = new WeakSet();  // an answer that is under way does not bring them back
  talks = new Map();

  /** Opens the database. `adopt` is called with id and conversation for each that another tab changed. */
  static async open(adopt) {
    const store = new Store();
    store.#tabs.onmessage = ({data}) => store.#read(data, adopt);
    try {
      store.#base = await done(Object.assign(indexedDB.open("edgespec", 1), {
        onupgradeneeded: ({target}) => target.result.createObjectStore("talks", {keyPath: "id"}),
      }));
      for (const talk of await done(store.#talks("readonly").getAll())) store.talks.set(talk.id, talk);
    } catch {}
    return store;
  }

  /** The conversations, the last changed one first. */
  get sorted() {
    return [...this.talks.values()].sort((one, other) => other.changed - one.changed);
  }

  async put(talk) {
    if (!talk.nodes.length || this.#removed.has(talk)) return;
    this.talks.set(talk.id, talk);
    await this.#write(talk.id, (talks) => talks.put(structuredClone(talk)));
  }

  async remove(talk) {
    this.#removed.add(talk);
    this.talks.delete(talk.id);
    await this.#write(talk.id, (talks) => talks.delete(talk.id));
  }

  /** Writes to the database, and tells the other tabs. */
  async #write(id, change) {
    if (!this.#base) return;
    await done(change(this.#talks("readwrite")));
    this.#tabs.postMessage(id);
  }

  async #read(id, adopt) {
    if (!this.#base) return;
    const found = await done(this.#talks("readonly").get(id));
    if (!found && this.talks.has(id)) this.#removed.add(this.talks.get(id));
    adopt(id, found);
  }

  #talks(mode) {
    return this.#base.transaction("talks", mode).objectStore("talks");
  }
}

/** Waits for a request to the database. */
const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = request.onblocked = () => reject(request.error);
});
