'use strict';

// A member and a producer beside other clients, with the Node.js client ali-ons: NAMESERVER NAME FOLDER KEY TOPIC GROUP
// It sends numbered events of one key, in any queues, until SIGUSR2 or SIGTERM. It appends a line for each message that it has handled to
// NAME.handled, as worker_consumer.py does (the client does not tell the broker), and one for each acknowledged send to NAME.acks, as
// worker_producer.py does.

const fs = require('node:fs');
const { Consumer, Message, Producer } = require('ali-ons');

const PAUSE_MS = 100;
const [ nameSrv, name, folder, key, topic, group ] = process.argv.slice(2);
const note = (...words) => console.error(...words.map(String));
const logger = { debug() {}, info() {}, warn: note, error: note };
const common = { httpclient: {}, nameSrv, logger };
let stopped = false;
let sent = false;

const nowUs = () => Number(process.hrtime.bigint() / 1000n);
const append = (ending, values) => fs.appendFileSync(`${folder}/${name}.${ending}`, `${JSON.stringify(values)}\n`);

async function main() {
  process.on('SIGTERM', () => { stopped = true; });
  process.on('SIGUSR2', () => { sent = true; });
  const consumer = new Consumer({ ...common, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', instanceName: name });
  consumer.on('error', note);
  consumer.subscribe(topic, '*', async message => {
    const begun = nowUs();
    const event = JSON.parse(`${message.body}`);
    append('handled', [ name, event.order, event.step, `${topic}@:${message.queueId}`, '0', message.queueOffset, begun, nowUs() ]);
  });
  const producer = new Producer({ ...common, producerGroup: `${name}-shop`, instanceName: name });
  producer.on('error', note);
  await producer.ready();
  console.log(JSON.stringify({ event: 'worker.ready' }));
  for (let step = 0; !stopped && !sent;) {
    try {
      const result = await producer.send(new Message(topic, JSON.stringify({ order: Number(key), step })));
      if (result.sendStatus === 'SEND_OK') {
        append('acks', [ Number(key), step, topic, Number(result.queueOffset) ]);
        step += 1;
      }
    } catch (error) {
      note('again:', error.message);
    }
    await new Promise(resolve => setTimeout(resolve, PAUSE_MS));
  }
  console.log(JSON.stringify({ event: 'worker.sent' }));
  while (!stopped) await new Promise(resolve => setTimeout(resolve, PAUSE_MS));
  await consumer.close();
  process.exit(0);
}

main();
