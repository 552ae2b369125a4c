// The list of conversations: opening, finding, naming, deleting, exporting and importing them.

/** Keeps a conversation as it is now. */
function save(changed) {
  changed.changed = Date.now();
  store?.put(changed).catch((error) => complain(`The browser does not keep this chat (${error.message}).`));
  showAddress();
  listTalks();
}

/** Returns the address of a conversation; of one that is not kept yet that of the page. */
const addressOf = ({id, nodes}) => new URL(nodes.length ? `#${id}` : location.pathname + location.search, location).href;

/** Gives the page the address and the title of this conversation. */
function showAddress() {
  if (addressOf(talk) !== location.href) history.replaceState(null, "", addressOf(talk));
  document.title = talk.title ? `${talk.title} - edgespec` : "edgespec";
}

/** Opens another conversation, from which the browser goes back to this one. */
function goTo(other) {
  if (addressOf(other) !== location.href) history.pushState(null, "", addressOf(other));
  open(other);
}

/** Opens the conversation that the page's address names. */
function openAddressed() {
  const id = location.hash.slice(1), found = store.talks.get(id);
  open(found ?? newTalk());
  if (id && !found) complain("This browser has no chat of this address (any more).");
}

/** Takes over what another tab did with a conversation: `found`, or nothing if it was deleted. */
function adopt(id, found) {
  if (found && underWay.has(id)) return;  // what is answered here is kept in its stead
  underWay.get(id)?.stop();
  if (found) store.talks.set(id, found);
  else store.talks.delete(id);
  const before = talk;
  if (id === talk.id && found) {
    talk = found;
    showChanged(before);
  } else if (id === talk.id) open(newTalk());
  listTalks();
}

function showList(shown) {
  document.body.classList.toggle("listed", shown);
  at("list").ariaExpanded = String(shown);
  (shown ? at("search") : at("list")).focus();
}

/** Looks for words in a conversation: returns where the first one is said, or nothing if one is missing. */
function search({title, nodes}, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return {place: null};
  const said = nodes.map((node) => node.message.content.toLowerCase());
  if (!words.every((word) => title.toLowerCase().includes(word) || said.some((each) => each.includes(word)))) return null;
  const place = said.findLastIndex((each) => each.includes(words[0]));
  return place < 0 ? {place: null} : {place, at: said[place].indexOf(words[0]), length: words[0].length};
}

/** Returns the words around what was found in a message. */
function excerpt({message}, {at, length}) {
  const text = message.content, begin = Math.max(0, at - 20);
  const found = make("mark", {}, text.slice(at, at + length));
  return make("small", {}, begin ? "…" : "", text.slice(begin, at), found, text.slice(at + length, at + length + 60));
}

/** Lists the conversations that are searched for; the focus in the list stays where it is. */
function listTalks() {
  if (store === null || at("found").querySelector("input, .asks")) return;
  const focus = document.activeElement, entry = focus.closest("#found li");
  const place = entry && [...entry.children].indexOf(focus);
  at("found").replaceChildren(...store.sorted.flatMap((each) => {
    const found = search(each, at("search").value);
    return found ? [listed(each, found)] : [];
  }));
  if (entry) [...at("found").children].find(({dataset}) => dataset.id === entry.dataset.id)?.children[place].focus();
}

/** Returns the entry of a conversation, with what was found in it. */
function listed(each, found) {
  const name = each.title || "Untitled";
  const button = (text, label, action) => make("button", {type: "button", ariaLabel: `${label} ${name}`, title: label, onclick: action}, text);
  const entry = make("li", {className: each.id === talk.id ? "current" : ""});
  if (underWay.has(each.id)) entry.classList.add("answering");
  entry.dataset.id = each.id;
  const opens = make("button", {type: "button", className: "opens", title: name}, name);
  if (underWay.has(each.id)) opens.ariaDescription = "is being answered";
  opens.onclick = () => {
    goTo(each);
    if (found.place !== null) showPlace(found.place);
    document.body.classList.remove("listed");
    at("list").ariaExpanded = "false";
    at("said").focus();
  };
  if (each.id === talk.id) opens.ariaCurrent = "true";
  const rename = () => {
    const field = make("input", {value: each.title, ariaLabel: `New name of ${name}`});
    const end = (title) => {
      field.onblur = null;
      each.title = title.trim() || each.title;
      store.put(each);
      const renamed = listed(each, found);
      entry.replaceWith(renamed);  // the others stay, as one of them may be what was clicked on
      return renamed;
    };
    field.onkeydown = (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();  // or the key would go on to what has the focus now
      event.stopPropagation();
      end(event.key === "Enter" ? field.value : "").firstChild.focus();
    };
    field.onblur = () => end(field.value);
    entry.replaceChildren(field);
    field.select();
  };
  const remove = ({target}) => {
    const asks = !target.matches(".asks");
    target.classList.toggle("asks", asks);
    target.textContent = asks ? "Delete" : "✕";
    if (asks) return;
    underWay.get(each.id)?.stop();
    store.remove(each);
    if (each.id === talk.id) goTo(newTalk());
    else listTalks();
    at("search").focus();
    announce(`${name} was deleted.`);
  };
  const removes = button("✕", "Delete", remove);
  removes.onblur = () => {
    removes.classList.remove("asks");
    removes.textContent = "✕";
  };
  entry.append(opens, button("✎", "Rename", rename), removes);
  if (found.place !== null) entry.append(excerpt(each.nodes[found.place], found));
  return entry;
}

at("list").onclick = () => showList(!document.body.classList.contains("listed"));
at("search").oninput = listTalks;
at("export").onclick = () => {
  const text = JSON.stringify({edgespec_chats: 1, talks: store.sorted}, null, 1);
  const link = make("a", {href: URL.createObjectURL(new Blob([text], {type: "application/json"})), download: "edgespec-chats.json"});
  link.click();
  URL.revokeObjectURL(link.href);
};
at("import").onclick = () => choose(importTalks, {accept: ".json", multiple: true});

/** Takes over the conversations of files. What has the same id is replaced where it is older. */
async function importTalks(files) {
  let count = 0;
  for (const file of files) {
    try {
      const found = readTalks(await file.text());
      for (const each of found) {
        if (!(store.talks.get(each.id)?.changed >= each.changed) && !underWay.has(each.id)) await store.put(each);
      }
      count += found.length;
    } catch (error) {
      complain(`${file.name}: ${error.message}`);
    }
  }
  const now = store.talks.get(talk.id) ?? talk;
  if (now !== talk) open(now);
  announce(`${count} chats were imported.`);
  listTalks();
}

addEventListener("hashchange", () => {
  if (store !== null && addressOf(talk) !== location.href) openAddressed();
});
Store.open(adopt).then((opened) => {
  store = opened;
  if (talk.nodes.length) save(talk);  // something was asked already
  else openAddressed();
  return meet();  // afterwards, as what it complains of is to stay
});
