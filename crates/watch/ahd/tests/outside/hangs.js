// An HTTP server that hangs as public reports describe it: atomics, own_request, backtracks, no_end, parser; the reports are listed in reports.txt.
const http = require("http"), { Worker } = require("worker_threads"), { execSync } = require("child_process");
const [port, how] = [Number(process.argv[2]), process.argv[3]];

function hang() {
  if (how === "atomics") {
    // The worker's answer comes by an event of the loop that waits for it here.
    const word = new Int32Array(new SharedArrayBuffer(4));
    const worker = new Worker("require('worker_threads').parentPort.postMessage(1)", { eval: true });
    worker.on("message", () => { Atomics.store(word, 0, 1); Atomics.notify(word, 0); });
    Atomics.wait(word, 0, 0);
  } else if (how === "own_request") {
    execSync(`curl -s http://127.0.0.1:${port}/`);
  } else if (how === "parser") {
    // A comment that is not closed: the parser looks for its end at the same place again.
    const text = "<p>hello</p><!-- world";
    for (let at = 0; at < text.length;) {
      const end = text.indexOf(">", at);
      if (end >= 0) at = end + 1;
    }
  } else {
    /^(\w+\s?)+$/.test("word ".repeat(12) + "!");
    /^([\w_%+-]+\.?)+@([\w-]+\.)+[a-zA-Z]{2,24}$/.test("_VeryLongNameThatIsNoCorrectEmailAddress_AndLonger");
  }
}

http.createServer((request, response) => {
  // The branch that neither answers nor hands the request on.
  if (request.url === "/hang" && how === "no_end") return;
  if (request.url === "/hang") hang();
  response.end("ok");
}).listen(port, "127.0.0.1");
