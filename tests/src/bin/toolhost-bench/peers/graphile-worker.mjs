// Graphile Worker as its page on performance advises for throughput: jobs are locked in batches for a queue in memory, and completed in batches.
import { EventEmitter } from "node:events";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { finished, putIn, work } from "./load.mjs";

const logger = new Logger(() => () => {});
const pool = (max) => new pg.Pool({ connectionString: process.env.PEER_DATABASE, max }).on("error", console.error).on("connect", (client) => client.on("error", console.error));

if (process.argv[2] === "put-in") {
  const utils = await makeWorkerUtils({ pgPool: pool(32), logger });
  await putIn(() => utils.addJob("nothing", {}));
} else {
  const utils = await makeWorkerUtils({ pgPool: pool(1), logger });
  await utils.migrate();
  await utils.release();
  const events = new EventEmitter();
  events.on("job:complete", () => finished(1));
  const runner = await run({
    pgPool: pool(16),
    logger,
    events,
    noHandleSignals: true,
    taskList: { nothing: async () => {} },
    preset: { worker: { concurrentJobs: 64, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
  });
  await work(process.argv[1], () => runner.stop());
}
