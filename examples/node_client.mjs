// A client of `headgate serve` in plain Node.js (18 or later, no packages).
//
//   headgate serve --url redis://localhost:6379/0
//   HEADGATE_SERVICE=http://127.0.0.1:8080 node examples/node_client.mjs
//
// With tokens: HEADGATE_TOKEN=... too.

const service = process.env.HEADGATE_SERVICE ?? "http://127.0.0.1:8080";
const token = process.env.HEADGATE_TOKEN;

async function ask(path, body) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(service + path, { method: "POST", headers, body: JSON.stringify(body) });
  const found = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(`${answer.status} ${found.title}: ${found.detail}`);
  return found;
}

// Take a slot and renew it while the work goes on, then give it back, whatever becomes of the work.
async function withLease(wish, work) {
  const { allowed, lease_id, retry_after_seconds } = await ask("/v1/acquire", { ...wish, lease: { ttl_seconds: 30 } });
  if (!allowed) throw new Error(`refused; retry in ${retry_after_seconds} s`);
  const renewing = setInterval(() => ask(`/v1/leases/${lease_id}/renew`, {}).catch(console.error), 10_000);
  try {
    return await work(lease_id);
  } finally {
    clearInterval(renewing);
    await ask(`/v1/leases/${lease_id}/release`, {});
  }
}

const caller = process.argv[2] ?? `node-${process.pid}`;

// One decision: three requests of two that are allowed.
for (let n = 1; n <= 3; n++) {
  const wish = { entity_id: caller, resource: "api", consume: { rpm: 1 }, limits: ["rpm=2/minute"] };
  const { allowed, retry_after_seconds } = await ask("/v1/acquire", wish);
  console.log(`request ${n}: ${allowed ? "allowed" : `refused, retry in ${Math.ceil(retry_after_seconds)} s`}`);
}

// Many decisions in one call.
const asks = ["ann", "bob", "ann"].map((user) => ({
  entity_id: `${caller}-${user}`,
  resource: "api",
  limits: ["once=1/hour"],
}));
const { decisions } = await ask("/v1/acquire/batch", { asks });
console.log("batch:", decisions.map(({ allowed }) => (allowed ? "allowed" : "refused")).join(", "));

// Slots, and tokens that are corrected when the real usage is known.
const job = {
  entity_id: caller,
  resource: "llm",
  consume: { parallel: 1, tokens: 500 },
  limits: ["parallel=1 concurrent", "tokens=1000/hour"],
};
await withLease(job, async (lease_id) => {
  const { consumed } = await ask(`/v1/leases/${lease_id}/adjust`, { amounts: { tokens: -120 } });
  console.log("tokens used:", consumed.tokens);
  const other = await ask("/v1/acquire", job);
  console.log("another job meanwhile:", other.allowed ? "allowed" : "refused");
});
await withLease({ ...job, consume: { parallel: 1 } }, async () => console.log("and after it: allowed"));
