// A device of docs/wire.md that sends each row to the high-cost model and prints the answer.
//   npm install mqtt cbor-x   (with Node 20.15 or newer)
//   echo '[0.1, 2, 3.5]' | node device.mjs mqtt://localhost pi-1 digits 1
// It reads rows as JSON lists from standard input, and prints a JSON object for each; null is a
// missing value.
import { randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import { crc32 } from "node:zlib";
import { Encoder } from "cbor-x";
import mqtt from "mqtt";

const [url, device, model, version] = process.argv.slice(2);
const DEADLINE_MS = 5000;
const RETRY_MS = 1000; // a real device retries after twice its round trip
const cbor = new Encoder({ useRecords: false, tagUint8Array: false });
const checksum = (message) => crc32(message.subarray(0, -4));
const finishById = new Map(); // function that takes the answer, by the id of an open request

function receive(_topic, payload) {
  if (payload.length < 4 || payload.readUInt32BE(payload.length - 4) !== checksum(payload)) return;
  try {
    const { id, e: error, d: detail, y: labels, p: probabilities } = cbor.decode(payload);
    const finish = finishById.get(id.toString("hex"));
    if (error === "busy" || error === "no-model") return; // the retry or another pool may answer
    if (typeof error === "string") finish?.({ error, detail });
    else if (labels instanceof Uint16Array && labels.length === 1)
      finish?.({ label: labels[0], p: [...probabilities] });
  } catch {
    // a malformed message is no response
  }
}

function encodeRequest(id, row) {
  const x = Float32Array.from(row, (value) => value ?? NaN); // cbor-x writes it with tag 85
  const identity = { v: 1, id, m: model, mv: version };
  const request = { ...identity, ttl: DEADLINE_MS, n: 1, k: row.length, x, crc: Buffer.alloc(4) };
  const message = Buffer.from(cbor.encode(request));
  message.writeUInt32BE(checksum(message), message.length - 4);
  return message;
}

function answerRow(row) {
  const id = randomBytes(16);
  const message = encodeRequest(id, row);
  const messageIds = [];
  const send = () => {
    if (!client.connected) return; // the client would send it after it has connected again
    client.publish(`gw/v1/${device}/req`, message, { qos: 1 });
    messageIds.push(client.getLastMessageId());
  };
  send();
  return new Promise((resolve) => {
    const finish = (answer) => {
      timers.forEach(clearTimeout);
      finishById.delete(id.toString("hex"));
      messageIds.forEach((messageId) => client.removeOutgoingMessage(messageId)); // nor later
      resolve(answer);
    };
    const fallBack = () => finish({ fallback: true });
    const timers = [setTimeout(send, RETRY_MS), setTimeout(fallBack, DEADLINE_MS)];
    finishById.set(id.toString("hex"), finish);
  });
}

const will = { topic: `gw/v1/${device}/status`, payload: "offline", qos: 1, retain: true };
const client = await mqtt.connectAsync(url, { clientId: `gw-${device}`, protocolVersion: 4, will });
const greet = () => {
  client.stream.setNoDelay(true); // otherwise a request takes 40 ms more
  client.publish(will.topic, `online ${model}/${version}`, { qos: 1, retain: true });
};
client.on("connect", greet); // again, after an outage
client.on("message", receive);
await client.subscribeAsync(`gw/v1/${device}/rsp`, { qos: 1 });
greet();
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answerRow(JSON.parse(line))));
}
await client.publishAsync(will.topic, "offline", { qos: 1, retain: true });
await client.endAsync();
