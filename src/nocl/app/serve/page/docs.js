// The interface, read from openapi.json: each path with an example for the command line.
const element = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

function example(path, method, operation) {
  const schema = operation.requestBody?.content?.["multipart/form-data"]?.schema;
  const fields = Object.keys(schema?.properties ?? {}).map((name) => (name === "images" ? "-F images=@photo.jpg" : `-F ${name}="blue mug"`));
  const token = ["/learn", "/classes/{name}"].includes(path) && method !== "get" ? ['-H "Authorization: Bearer $NOCL_TOKEN"'] : [];
  const verb = method === "delete" ? ["-X DELETE"] : [];
  return ["curl", ...verb, ...token, ...fields, `${location.origin}${path.replace("{name}", "blue%20mug")}`].join(" ");
}

const described = await (await fetch("openapi.json")).json();
for (const [path, methods] of Object.entries(described.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    document.getElementById("paths").append(element("section", { className: "card doc" },
      element("h2", {}, element("b", { textContent: method.toUpperCase() }), ` ${path}`),
      element("p", { textContent: `${operation.summary}. ${operation.description ?? ""}` }),
      element("pre", { textContent: example(path, method, operation) })));
  }
}
