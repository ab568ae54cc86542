// The page: pictures in, bars out; teaching, correcting, forgetting. No library; texts are in words.js.
import { closeCamera, openCamera } from "./camera.js";
import * as device from "./device.js";
import { form, groups, shrink } from "./pictures.js";
import { ask, askOnce, download } from "./service.js";
import { words } from "./words.js";

const $ = (id) => document.getElementById(id);
const SHOWN = 60; // results kept on the page
const state = { chosen: [], limits: { images: 64, body_bytes: 1 << 25 }, known: new Map(), side: 224, fresh: null, undo: false, onDevice: false };
const shown = new Map(); // result row: its picture, kept in the page only, so that it can be asked again or taught

const element = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

function say(text, { bad = false, undo = false } = {}) {
  $("message-text").textContent = text;
  $("message-text").setAttribute("role", bad ? "alert" : "status");
  $("message").classList.toggle("bad", bad);
  $("message").hidden = !text;
  $("undo").hidden = !undo;
}

const fail = (error) => say(error.message, { bad: true });

function onlyPictures(files) {
  const all = [...files];
  const other = all.find((file) => !file.type.startsWith("image/"));
  if (other) say(words.notAPicture(other.name), { bad: true });
  return all.filter((file) => file.type.startsWith("image/"));
}

const thumbnail = (file, alt) => element("img", { src: URL.createObjectURL(file), alt });
const side = () => state.side;

// --- recognise ---------------------------------------------------------------------------------------------------

async function look(file) {
  if (state.onDevice) return device.look(file);
  const answer = await ask("predict?top=5", { method: "POST", body: form([file]) });
  return answer.predictions[0];
}

async function recognise(files) {
  say("");
  const good = onlyPictures(files);
  let done = 0;
  for (const file of good) {
    $("recognise-progress").hidden = good.length < 2;
    $("recognise-progress").textContent = words.recognise.waiting(++done, good.length);
    const row = element("li", { className: "result" }, thumbnail(file, file.name || words.yourPicture));
    const beside = element("div", {}, element("p", { className: "hint", textContent: words.recognise.looking }));
    row.append(beside);
    $("results").prepend(row);
    $("results-empty").hidden = true;
    try {
      const small = await shrink(file, state.side);
      beside.replaceChildren(...answered(row, await look(small)));
      shown.set(row, small);
    } catch (error) {
      row.remove();
      $("results-empty").hidden = $("results").children.length > 0;
      fail(error);
    }
  }
  $("recognise-progress").hidden = true;
  while ($("results").children.length > SHOWN) {
    shown.delete($("results").lastChild);
    $("results").lastChild.remove();
  }
}

function bars(prediction, pick) {
  const list = element("ol", { className: "bars" });
  prediction.top.forEach(({ label, probability }, i) => {
    const fill = element("i");
    fill.style.width = `${Math.max(0, probability * 100)}%`;
    const percent = `${(probability * 100).toFixed(probability < 0.0995 ? 1 : 0)} %`;
    const row = element("li", { className: "bar" }, fill,
      element("span", { className: "label", textContent: label }),
      element("span", { className: "value", textContent: percent }));
    if (pick && i) {
      const button = element("button", { type: "button", className: "pick", textContent: "✓", title: words.recognise.isThis(label) });
      button.setAttribute("aria-label", words.recognise.isThis(label));
      button.onclick = () => pick(label);
      row.append(button);
    }
    list.append(row);
  });
  return prediction.none_of_these ? [element("p", { className: "unsure", textContent: words.recognise.unsure }), list] : [list];
}

// The bars of a result, with "No, this is ..." below them.
function answered(row, prediction) {
  const wrong = prediction.label;
  const pick = (name) => correct(row, name, wrong).catch(fail);
  const field = element("input", { placeholder: words.recognise.other, maxLength: 200 });
  field.setAttribute("list", "known");
  field.setAttribute("aria-label", words.recognise.wrong);
  const other = element("form", { className: "correct" },
    element("span", { className: "hint", textContent: words.recognise.wrong }), field,
    element("button", { className: "quiet", textContent: words.recognise.teachThis }));
  other.onsubmit = (event) => {
    event.preventDefault();
    if (field.value.trim()) pick(field.value.trim());
  };
  return [...bars(prediction, pick), other];
}

async function correct(row, name, wrong) {
  const fields = { label: name, ...(wrong && wrong !== name ? { instead_of: wrong } : {}) };
  const answer = await askOnce("learn", { method: "POST", body: form([shown.get(row)], fields) });
  state.fresh = name;
  await refresh();
  say(words.recognise.corrected(name, answer.count), { undo: state.undo });
}

// What is shown is asked again, because the model has changed.
async function lookAgain() {
  for (const [row, file] of shown) {
    try {
      row.lastElementChild.replaceChildren(...answered(row, await look(file)));
    } catch {
      row.remove(); // no class is left
      shown.delete(row);
    }
  }
  $("results-empty").hidden = $("results").children.length > 0;
}

// Recognise in this browser from now on, or by the service again.
async function switchDevice(event) {
  state.onDevice = event.target.checked;
  say(state.onDevice ? words.recognise.deviceLoading : "");
  try {
    await refresh();
    if (state.onDevice) say(words.recognise.deviceReady);
  } catch (error) {
    state.onDevice = event.target.checked = false;
    say(words.recognise.deviceFailed(error.message), { bad: true });
  }
}

// --- teach -------------------------------------------------------------------------------------------------------

function choose(files) {
  say("");
  state.chosen.push(...onlyPictures(files));
  showChosen();
  if (!$("name").value.trim() && !$("camera").open) $("name").focus();
}

function showChosen() {
  $("chosen").replaceChildren(...state.chosen.map((file, i) => {
    const name = file.name || words.aPicture(i + 1);
    const drop = element("button", { type: "button", textContent: "×", title: words.teach.leaveOut });
    drop.setAttribute("aria-label", words.teach.leaveOutOne(name));
    drop.onclick = () => { state.chosen.splice(i, 1); showChosen(); };
    return element("li", {}, thumbnail(file, name), drop);
  }));
  $("teach-button").disabled = !state.chosen.length || !$("name").value.trim();
  $("teach-button").textContent = words.teach.button(state.chosen.length);
}

async function teach(event) {
  event.preventDefault();
  const name = $("name").value.trim();
  const all = state.chosen.length;
  if (!name || !all) return;
  const before = state.known.get(name);
  let done = 0, count = 0;
  working(0, all);
  try {
    const small = [];
    for (const file of state.chosen) small.push(await shrink(file, state.side));
    for (const group of groups(small, state.limits)) {
      count = (await askOnce("learn", { method: "POST", body: form(group, { label: name }) })).count;
      done += group.length;
      state.chosen.splice(0, group.length);
      working(done, all);
    }
    $("name").value = "";
    state.fresh = name;
    await refresh();
    say(before ? words.teach.improved(name, done, count) : words.teach.learned(name, done), { undo: state.undo });
  } catch (error) {
    if (done) await refresh().catch(() => {});
    say(done ? words.teach.stopped(done, all, error.message) : error.message, { bad: true });
  }
  working(null);
  showChosen();
}

function working(done, all = 0) {
  $("teach-button").disabled = done !== null;
  $("progress").hidden = $("progress-text").hidden = done === null;
  if (done === null) return;
  Object.assign($("progress"), { max: all, value: done });
  $("progress-text").textContent = words.teach.sending(done, all);
}

// --- classes -----------------------------------------------------------------------------------------------------

const size = (bytes) => bytes < 1000 ? `${bytes} bytes` : bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

async function refresh() {
  const answer = await ask("classes");
  state.limits = answer.limits;
  state.side = answer.size ?? state.side;
  state.undo = Boolean(answer.undo);
  state.known = new Map(answer.classes.map((one) => [one.name, one]));
  $("token-form").hidden = !answer.needs_token;
  $("about").textContent = words.classes.method(answer.method, answer.network);
  $("stored").textContent = words.stored(answer.privacy.images_stored);
  $("class-count").textContent = answer.classes.length;
  $("classes-empty").hidden = answer.classes.length > 0;
  $("filter").hidden = answer.classes.length < 8;
  $("kept").textContent = answer.privacy.images_stored === 0 ? words.classes.kept : words.classes.keptPictures;
  $("details").textContent = `${words.classes.method(answer.method, answer.network)}. ${answer.privacy.kept}. `
    + (answer.calibrated ? words.classes.calibrated : words.classes.uncalibrated);
  $("known").replaceChildren(...answer.classes.map((one) => element("option", { value: one.name })));
  $("device-choice").hidden = !answer.on_device;
  if (state.onDevice) await device.load(answer);
  showMixed(answer.confused ?? []);
  showClasses();
  await lookAgain();
}

function showMixed(pairs) {
  $("mixed").hidden = !pairs.length;
  $("mixed").replaceChildren(...pairs.slice(0, 3).map(({ right, taken_for: wrong, times }) =>
    element("li", {}, element("span", { textContent: words.classes.mixed(right, wrong, times) }), addButton(right), addButton(wrong))));
}

function addButton(name) {
  const button = element("button", { type: "button", className: "quiet", textContent: words.classes.addTo(name) });
  button.onclick = () => { $("name").value = name; showChosen(); $("teach-files").focus(); };
  return button;
}

function showClasses() {
  const wanted = $("filter").value.trim().toLowerCase();
  const found = [...state.known.values()].filter((one) => one.name.toLowerCase().includes(wanted)).reverse();
  $("classes").replaceChildren(...found.map((one) => {
    const forgetIt = element("button", { type: "button", className: "quiet", textContent: words.classes.forget });
    forgetIt.setAttribute("aria-label", words.classes.forgetOne(one.name));
    forgetIt.onclick = () => forget(one.name).catch(fail);
    return element("li", { className: one.name === state.fresh ? "new" : "" },
      element("div", { className: "who" }, element("strong", { textContent: one.name, title: one.name }),
        element("span", { textContent: words.classes.row(one.images_learned, size(one.bytes)) })), forgetIt);
  }));
  state.fresh = null;
}

// Resolves to whether the person said yes.
function confirmed(title, text, yes, no) {
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = yes;
  $("confirm-no").textContent = no;
  return new Promise((resolve) => {
    $("confirm-yes").onclick = () => { resolve(true); $("confirm").close(); };
    $("confirm-no").onclick = () => $("confirm").close();
    $("confirm").onclose = () => resolve(false);
    $("confirm").showModal();
  });
}

async function forget(name) {
  if (!await confirmed(words.confirm.question(name), words.confirm.text, words.confirm.yes, words.confirm.no)) return;
  const answer = await ask(`classes/${encodeURIComponent(name)}`, { method: "DELETE" });
  await refresh();
  say(words.confirm.done(name, answer.exactly), { undo: state.undo });
}

async function undo() {
  const answer = await ask("undo", { method: "POST" });
  await refresh();
  const { learned, forgotten, opened } = words.undo;
  say(answer.undone === "learn" ? learned(answer.label) : answer.undone === "forget" ? forgotten(answer.label) : opened);
}

async function openModel(file) {
  if (!await confirmed(words.model.openQuestion(file.name), words.model.emptyText(state.known.size), words.model.yes, words.model.no)) return;
  const answer = await ask("model", { method: "PUT", body: file, headers: { "Content-Type": "application/octet-stream" } });
  await refresh();
  say(words.model.opened(answer.classes), { undo: state.undo });
}

async function startEmpty() {
  if (!await confirmed(words.model.emptyQuestion, words.model.emptyText(state.known.size), words.model.yes, words.model.no)) return;
  await ask("model", { method: "DELETE" });
  await refresh();
  say(words.model.emptied, { undo: state.undo });
}

// --- wiring ------------------------------------------------------------------------------------------------------

const receive = (target, files) => (target === "teach" ? choose(files) : recognise(files));

function write(root) {
  document.documentElement.lang = words.language;
  document.title = words.title;
  for (const node of root.querySelectorAll("[data-words]")) {
    node.textContent = node.dataset.words.split(".").reduce((table, key) => table[key], words);
  }
  $("name").placeholder = words.teach.placeholder;
  $("filter").placeholder = words.classes.find;
  $("results").setAttribute("aria-label", words.recognise.results);
  $("chosen").setAttribute("aria-label", words.teach.chosen);
}

async function camera(target) {
  const opened = await openCamera({
    side, teaching: target === "teach",
    receive: (file) => receive(target, [file]),
    look: async (file) => bars(await look(file)),
  });
  if (!opened) say(words.camera.none, { bad: true });
}

write(document);
showChosen();
for (const zone of document.querySelectorAll(".drop")) {
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    receive(zone.dataset.for, event.dataTransfer.files);
  });
}
for (const target of ["recognise", "teach"]) {
  $(`${target}-files`).addEventListener("change", (event) => {
    receive(target, event.target.files);
    event.target.value = "";
  });
}
for (const button of document.querySelectorAll("[data-camera]")) {
  button.hidden = !navigator.mediaDevices;
  button.onclick = () => camera(button.dataset.camera);
}
document.addEventListener("paste", (event) => {
  const files = event.clipboardData?.files ?? [];
  if (!files.length) return;
  event.preventDefault();
  receive($("teach").contains(document.activeElement) ? "teach" : "recognise", files);
});
// a picture dropped beside a zone must not replace the page
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
document.addEventListener("load", (event) => {
  if (event.target.tagName === "IMG" && event.target.src.startsWith("blob:")) URL.revokeObjectURL(event.target.src);
}, true);
$("teach-form").addEventListener("submit", teach);
$("name").addEventListener("input", showChosen);
$("filter").addEventListener("input", showClasses);
$("device").addEventListener("change", switchDevice);
$("undo").onclick = () => undo().catch(fail);
$("download").onclick = () => download("model").catch(fail);
$("empty").onclick = () => startEmpty().catch(fail);
$("open").addEventListener("change", (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (file) openModel(file).catch(fail);
});
$("token-form").addEventListener("submit", (event) => event.preventDefault());
$("token").value = sessionStorage.getItem("nocl-token") ?? "";
$("token").addEventListener("input", () => sessionStorage.setItem("nocl-token", $("token").value));
$("camera-close").onclick = () => $("camera").close();
$("camera").addEventListener("close", closeCamera);
ask("healthz").then((answer) => { $("version").textContent = `nocl ${answer.version}`; }).catch(() => {});
refresh().catch(fail);
