// Recognise in this browser: the exported model runs in onnxruntime-web, which the service hands out. No picture is sent.
let ort = null, session = null, names = [], side = 0, short = 0;

// Load the runtime once and the model as it is now; `about` is the service's answer to "classes".
export async function load(about) {
  if (ort === null) {
    ort = await import("./ort/ort.wasm.bundle.min.mjs");
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = new URL("ort/", document.baseURI).href;
  }
  session = await ort.InferenceSession.create("model.onnx");
  names = about.classes.map((one) => one.name);
  [side, short] = [about.size, about.short_side ?? about.size];
}

// The answer to one picture, in the form the service gives it.
export async function look(file) {
  const images = new ort.Tensor("uint8", await pixels(file), [1, 3, side, side]);
  const { probabilities } = await session.run({ images });
  const order = [...probabilities.data.keys()].sort((a, b) => probabilities.data[b] - probabilities.data[a]).slice(0, 5);
  const top = order.map((i) => ({ label: names[i], probability: probabilities.data[i] }));
  return { label: top[0].label, none_of_these: null, top };
}

// The middle of the picture as the network wants it: planes of red, green and blue.
async function pixels(file) {
  const bitmap = await createImageBitmap(file);
  const scale = short / Math.min(bitmap.width, bitmap.height);
  const canvas = Object.assign(document.createElement("canvas"), { width: side, height: side });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  const [width, height] = [bitmap.width * scale, bitmap.height * scale];
  context.drawImage(bitmap, (side - width) / 2, (side - height) / 2, width, height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, side, side);
  const planes = new Uint8Array(3 * side * side);
  for (let i = 0; i < side * side; i++) {
    for (let c = 0; c < 3; c++) planes[c * side * side + i] = data[4 * i + c];
  }
  return planes;
}
