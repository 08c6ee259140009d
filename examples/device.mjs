// A device of docs/wire.md: rows as JSON lists from standard input, the high-cost model's answers out.
//   npm install mqtt cbor-x
//   echo '[0.1, 2, 3.5]' | node device.mjs mqtt://localhost pi-1 digits 1
import { randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import { crc32 } from "node:zlib";
import { Encoder } from "cbor-x";
import mqtt from "mqtt";

const [url, device, m, mv] = process.argv.slice(2);
const [DEADLINE, RETRY] = [5000, 1000]; // ms; a real device retries after twice its round trip
const cbor = new Encoder({ useRecords: false, tagUint8Array: false });
const checksum = (message) => crc32(message.subarray(0, -4));
const waiting = new Map(); // by id: what to do with the response

function receive(topic, payload) {
  if (payload.readUInt32BE(payload.length - 4) !== checksum(payload)) return;
  const { id, e, d, y, p } = cbor.decode(payload);
  if (e === "busy" || e === "no-model") return; // the second copy, or another pool, may do better
  waiting.get(id.toString("hex"))?.(e ? { error: e, detail: d } : { label: y[0], p: [...p] });
}

function ask(row) {
  const id = randomBytes(16);
  const x = new Float32Array(row); // goes as tag 85
  const entries = { v: 1, id, m, mv, ttl: DEADLINE, n: 1, k: row.length, x, crc: Buffer.alloc(4) };
  const message = Buffer.from(cbor.encode(entries));
  message.writeUInt32BE(checksum(message), message.length - 4);
  const send = () => client.publish(`gw/v1/${device}/req`, message, { qos: 1 });
  send();
  return new Promise((resolve) => {
    const timers = [setTimeout(send, RETRY), setTimeout(() => done({ fallback: true }), DEADLINE)];
    const done = (answer) => (timers.forEach(clearTimeout), waiting.delete(id.toString("hex")), resolve(answer));
    waiting.set(id.toString("hex"), done);
  });
}

const will = { topic: `gw/v1/${device}/status`, payload: "offline", qos: 1, retain: true };
const client = await mqtt.connectAsync(url, { clientId: `gw-${device}`, protocolVersion: 4, will });
client.stream.setNoDelay(true); // else a request takes 40 ms more
client.on("message", receive);
await client.subscribeAsync(`gw/v1/${device}/rsp`, { qos: 1 });
await client.publishAsync(will.topic, `online ${m}/${mv}`, { qos: 1, retain: true });
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await ask(JSON.parse(line))));
}
await client.publishAsync(will.topic, "offline", { qos: 1, retain: true });
await client.endAsync();
