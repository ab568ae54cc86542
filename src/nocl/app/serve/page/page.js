// The page: pictures in, bars out; teaching and forgetting. No library, no request to anywhere but this service.
const $ = (id) => document.getElementById(id);
const state = { chosen: [], limits: { images: 64, body_bytes: 1 << 25 }, known: new Map(), camera: null, fresh: null };

const element = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

function say(text, bad = false) {
  const box = $("message");
  box.textContent = text;
  box.classList.toggle("bad", bad);
  box.setAttribute("role", bad ? "alert" : "status");
  box.hidden = !text;
}

async function ask(path, options = {}) {
  const headers = {};
  const token = $("token").value.trim();
  if (token && options.method) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The service does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 401) {
    $("token-form").hidden = false;
    $("token").focus();
    throw new Error("The token is missing or wrong. Enter the one the service was started with.");
  }
  throw new Error(typeof answer.detail === "string" ? answer.detail : `The service answered ${response.status}.`);
}

function pictures(files) {
  const all = [...files];
  const good = all.filter((file) => file.type.startsWith("image/"));
  const other = all.find((file) => !file.type.startsWith("image/"));
  if (other) say(`${other.name || "That"} is not a picture.`, true);
  if (good.length > state.limits.images) {
    say(`At most ${state.limits.images} pictures at a time; you gave ${good.length}.`, true);
    return [];
  }
  const bytes = good.reduce((sum, file) => sum + file.size, 0);
  if (bytes > state.limits.body_bytes - 65536) {
    say(`Too large together: at most ${Math.floor(state.limits.body_bytes / 2 ** 20)} MB at a time.`, true);
    return [];
  }
  return good;
}

const thumbnail = (file, alt) => element("img", { src: URL.createObjectURL(file), alt });

// --- recognise ---------------------------------------------------------------------------------------------------

async function recognise(files) {
  say("");
  const good = pictures(files);
  for (const file of good) {
    const body = new FormData();
    body.append("images", file);
    const row = element("li", { className: "result" }, thumbnail(file, file.name || "your picture"));
    const side = element("div", {}, element("p", { className: "hint", textContent: "Looking…" }));
    row.append(side);
    $("results").prepend(row);
    $("results-empty").hidden = true;
    try {
      const answer = await ask("predict", { method: "POST", body });
      side.replaceChildren(...bars(answer.predictions[0]));
    } catch (error) {
      row.remove();
      $("results-empty").hidden = $("results").children.length > 0;
      say(error.message, true);
    }
  }
  while ($("results").children.length > 30) $("results").lastChild.remove();
}

function bars(prediction) {
  const list = element("ol", { className: "bars" });
  for (const { label, probability } of prediction.top) {
    const fill = element("i");
    fill.style.width = `${Math.max(0, probability * 100)}%`;
    const percent = `${(probability * 100).toFixed(probability < 0.0995 ? 1 : 0)} %`;
    list.append(element("li", { className: "bar" }, fill,
      element("span", { className: "label", textContent: label }),
      element("span", { className: "value", textContent: percent })));
  }
  if (!prediction.none_of_these) return [list];
  return [element("p", { className: "unsure", textContent: "Looks like none of the known classes. The nearest are:" }), list];
}

// --- teach -------------------------------------------------------------------------------------------------------

function choose(files) {
  say("");
  const good = pictures([...state.chosen, ...files]);
  if (!good.length) return;
  state.chosen = good;
  showChosen();
  if (!$("name").value.trim()) $("name").focus();
}

function showChosen() {
  $("chosen").replaceChildren(...state.chosen.map((file, i) => {
    const drop = element("button", { type: "button", textContent: "×", title: "Leave out" });
    drop.setAttribute("aria-label", `Leave out ${file.name || "picture " + (i + 1)}`);
    drop.onclick = () => { state.chosen.splice(i, 1); showChosen(); };
    return element("li", {}, thumbnail(file, file.name || `picture ${i + 1}`), drop);
  }));
  const n = state.chosen.length;
  $("teach-button").disabled = !n || !$("name").value.trim();
  $("teach-button").textContent = n ? `Teach ${n} ${n === 1 ? "picture" : "pictures"}` : "Teach";
}

async function teach(event) {
  event.preventDefault();
  const name = $("name").value.trim();
  if (!name || !state.chosen.length) return;
  const before = state.known.get(name);
  const body = new FormData();
  body.append("label", name);
  for (const file of state.chosen) body.append("images", file);
  $("teach-button").disabled = true;
  $("progress").hidden = false;
  try {
    const answer = await ask("learn", { method: "POST", body });
    state.chosen = [];
    $("name").value = "";
    state.fresh = name;
    await refresh();
    const pictureWord = answer.learned === 1 ? "picture" : "pictures";
    say(before
      ? `Improved “${name}” with ${answer.learned} ${pictureWord}: ${answer.count} learned, 0 stored.`
      : `Learned “${name}” from ${answer.learned} ${pictureWord}. None of them is stored.`);
  } catch (error) {
    say(error.message, true);
  }
  $("progress").hidden = true;
  showChosen();
}

// --- classes -----------------------------------------------------------------------------------------------------

const size = (bytes) => bytes < 1000 ? `${bytes} bytes` : bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

async function refresh() {
  const answer = await ask("classes");
  state.limits = answer.limits;
  state.known = new Map(answer.classes.map((one) => [one.name, one]));
  $("token-form").hidden = !answer.needs_token;
  $("about").textContent = `Method ${answer.method}; probabilities ${answer.calibrated ? "calibrated" : "not calibrated"}`;
  $("stored-count").textContent = answer.privacy.images_stored ?? "some";
  $("class-count").textContent = answer.classes.length;
  $("classes-empty").hidden = answer.classes.length > 0;
  $("filter").hidden = answer.classes.length < 12;
  $("kept").textContent = `Kept ${answer.privacy.kept}.`;
  $("known").replaceChildren(...answer.classes.map((one) => element("option", { value: one.name })));
  showClasses();
}

function showClasses() {
  const wanted = $("filter").value.trim().toLowerCase();
  const shown = [...state.known.values()].filter((one) => one.name.toLowerCase().includes(wanted)).reverse();
  $("classes").replaceChildren(...shown.map((one) => {
    const forgetIt = element("button", { type: "button", className: "quiet", textContent: "Forget" });
    forgetIt.setAttribute("aria-label", `Forget ${one.name}`);
    forgetIt.onclick = () => confirmForget(one.name);
    const learned = `${one.images_learned} ${one.images_learned === 1 ? "image" : "images"} learned`;
    return element("li", { className: one.name === state.fresh ? "new" : "" },
      element("div", { className: "who" }, element("strong", { textContent: one.name, title: one.name }),
        element("span", { textContent: `${learned} · ${size(one.bytes)} kept` })), forgetIt);
  }));
  state.fresh = null;
}

function confirmForget(name) {
  $("confirm-title").textContent = `Forget “${name}”?`;
  $("confirm-text").textContent = "Its name and statistics are removed from the model and its files. This cannot be undone.";
  $("confirm-yes").onclick = async () => {
    $("confirm").close();
    try {
      const answer = await ask(`classes/${encodeURIComponent(name)}`, { method: "DELETE" });
      await refresh();
      say(`Forgot “${name}”.` + (answer.exactly ? "" : " What it gave to the shared covariance stays."));
    } catch (error) {
      say(error.message, true);
    }
  };
  $("confirm").showModal();
}

// --- camera ------------------------------------------------------------------------------------------------------

async function openCamera(target) {
  try {
    state.camera = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    say("No camera could be opened. Allow it in the browser, or choose picture files.", true);
    return;
  }
  $("video").srcObject = state.camera;
  $("shoot").onclick = () => {
    const video = $("video");
    const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      receive(target, [new File([blob], "camera.png", { type: "image/png" })]);
      if (target === "recognise") $("camera").close();
    }, "image/png");
  };
  $("camera").showModal();
}

function closeCamera() {
  state.camera?.getTracks().forEach((track) => track.stop());
  state.camera = null;
}

// --- wiring ------------------------------------------------------------------------------------------------------

const receive = (target, files) => (target === "teach" ? choose(files) : recognise(files));

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
  button.onclick = () => openCamera(button.dataset.camera);
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
$("token-form").addEventListener("submit", (event) => event.preventDefault());
$("token").value = sessionStorage.getItem("nocl-token") ?? "";
$("token").addEventListener("input", () => sessionStorage.setItem("nocl-token", $("token").value));
$("camera-close").onclick = () => $("camera").close();
$("camera").addEventListener("close", closeCamera);
$("confirm-no").onclick = () => $("confirm").close();
ask("healthz").then((answer) => { $("version").textContent = `nocl ${answer.version}`; }).catch(() => {});
refresh().catch((error) => say(error.message, true));
