// pg-boss with batches of 50, by fetch and complete: its own loop, work(), waits half a second between two batches.
import PgBoss from "pg-boss";
import { finished, putIn, work } from "./load.mjs";

const QUEUE = "nothing";
const BATCH = 50;
const WORKERS = 4;

const connect = async (max, supervise) => {
  const boss = new PgBoss({ connectionString: process.env.PEER_DATABASE, max, supervise, schedule: false });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue(QUEUE);
  return boss;
};

if (process.argv[2] === "put-in") {
  const boss = await connect(32, false);
  await putIn(() => boss.send(QUEUE, {}));
} else {
  const boss = await connect(16, true);
  let stopped = false;
  const workers = Array.from({ length: WORKERS }, async () => {
    while (!stopped) {
      const jobs = await boss.fetch(QUEUE, { batchSize: BATCH });
      if (jobs.length === 0) {
        await new Promise((resolve) => setTimeout(resolve, 5));
        continue;
      }
      await boss.complete(QUEUE, jobs.map((job) => job.id));
      finished(jobs.length);
    }
  });
  await work(process.argv[1], async () => {
    stopped = true;
    await Promise.all(workers);
    await boss.stop({ graceful: false });
  });
}
