// What every queue gets: 64 clients that put in jobs for as long as they are told, in a process of their own, and a count of jobs that were done.
import { fork } from "node:child_process";
import readline from "node:readline";

const CLIENTS = 64;
// Jobs that wait at once: enough for full batches, few enough that no queue grows.
const WAITING = 1000;
const RAMP_MS = 500;

let done = 0;
export const finished = (count) => void (done += count);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Puts in jobs while its parent says so, never more than may wait. */
export async function putIn(add) {
  let added = 0, known = 0, going = false, wake = [];
  process.on("message", (message) => {
    known = message.done;
    going = message.going;
    wake.splice(0).forEach((resolve) => resolve());
    if (!going) Promise.all(busy).then(() => process.send({ added }));
  });
  process.on("disconnect", () => process.exit(0));
  const busy = new Set();
  process.send({ ready: true });
  await Promise.all(Array.from({ length: CLIENTS }, async () => {
    for (;;) {
      if (!going || added - known >= WAITING) {
        await new Promise((resolve) => wake.push(resolve));
        continue;
      }
      added += 1;
      const job = add();
      busy.add(job);
      await job;
      busy.delete(job);
    }
  }));
}

/** Works until its input ends: for each line, a number of milliseconds, it prints jobs done per second in that time. */
export async function work(script, stop) {
  const clients = fork(script, ["put-in"]);
  const answers = [];
  let answered = () => {};
  clients.on("message", (message) => { answers.push(message); answered(); });
  const answer = async () => {
    while (!answers.length) await new Promise((resolve) => (answered = resolve));
    return answers.shift();
  };
  await answer();
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let going = true;
    const tell = setInterval(() => clients.send({ done, going }), 5);
    await sleep(RAMP_MS);
    const [before, since] = [done, performance.now()];
    await sleep(Number(line) - RAMP_MS);
    const rate = ((done - before) * 1000) / (performance.now() - since);
    going = false;
    clearInterval(tell);
    clients.send({ done, going });
    const { added } = await answer();
    while (done < added) await sleep(5);
    console.log(rate.toFixed(1));
  }
  clients.disconnect();
  await stop();
  process.exit(0);
}
