// The server's models, and which of them answers.

let models = [], model = null, chats = true, seesImages = false;

/** Asks the server for its models. */
async function meet() {
  let complaint = null;
  try {
    const response = await fetch("v1/models", {headers: headers()});
    at("key-label").hidden = response.status !== 401 && !at("key").value;
    if (response.status === 401) openSettings("key");
    if (!response.ok) throw new Error((await response.json()).error.message);
    models = (await response.json()).data;
    at("models").replaceChildren(...models.map(({id, status}) => {
      return make("option", {value: id}, status.value === "loaded" ? id : `${id} (not loaded)`);
    }));
    at("models").hidden = models.length < 2;
    use(talk.model ?? model);
    await meetTools();
  } catch (error) {
    complaint = error;
  }
  document.querySelector(".unmet")?.remove();
  if (complaint !== null) complain(readable(complaint)).classList.add("unmet");
}

/** Has the model of a name answer from now on, or the first one if there is none. */
function use(name) {
  const {id, edgespec, capabilities} = models.find((each) => each.id === name) ?? models[0];
  [model, chats, seesImages] = [id, edgespec.chat, capabilities.includes("images")];
  at("models").value = id;
  for (const name of ["temperature", "top_p"]) at(name).placeholder = edgespec.sampling?.[name] ?? "";
  at("for-tools").hidden = !capabilities.includes("tools");
  const remark = chats ? "" : " (no chat template: continues your text)";
  at("model").replaceChildren(models.length > 1 ? "" : model, make("span", {}, remark));
  at("model").title = model + remark;
  greet();
}

/** Browsers say only that fetching failed. */
function readable(error) {
  return error instanceof TypeError ? `The server cannot be reached (${error.message}).` : error.message;
}

at("key").onchange = meet;
