// An HTTP server: /hang never returns (spin) or never answers (lost); /slow answers after three seconds.
const [, , port, how] = process.argv;
require("http").createServer((request, response) => {
  if (request.url === "/hang" && how === "spin") for (;;);
  if (request.url === "/hang" && how === "lost") return new Promise(() => {});
  if (request.url === "/slow") return setTimeout(() => response.end("ok"), 3000);
  response.end("ok");
}).listen(Number(port), "127.0.0.1");
