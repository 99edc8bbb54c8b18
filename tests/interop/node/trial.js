'use strict';

// Uses the Node.js client ali-ons in each way that a program does: NAMESERVER USE…
// Prints a line "ok USE" or "failed USE: WHY" for each.

const assert = require('node:assert');
const { Consumer, Message, Producer } = require('ali-ons');

const LIMIT_MS = 60_000;
const [ nameSrv, ...asked ] = process.argv.slice(2);
const errors = [];
const note = (...words) => errors.push(words.map(String).join(' '));
const logger = { debug() {}, info() {}, warn: note, error: note };
const { ACCESS_KEY: accessKey, SECRET_KEY: secretKey } = process.env; // unset: requests are not signed
const common = { httpclient: {}, nameSrv, logger, accessKey, secretKey };
const producer = new Producer({ ...common, producerGroup: 'node-shop' });
producer.on('error', note);
let instances = 0;

const uses = {
  async sync(topic) {
    const result = await send(topic, 'TagA', '1');
    assert.strictEqual(result.sendStatus, 'SEND_OK');
  },
  async compressed(topic) {
    const body = 'x'.repeat(100_000);
    await send(topic, 'TagA', body);
    await consumeUntil(topic, '*', [ body ]);
  },
  async push(topic) {
    const sent = [];
    for (let number = 0; number < 100; number++) {
      await send(topic, 'TagA', `${number}`);
      sent.push(`${number}`);
    }
    await consumeUntil(topic, '*', sent);
  },
  async tags(topic) {
    for (const tag of [ 'TagA', 'TagB', 'TagC' ]) await send(topic, tag, tag);
    const got = await consumeUntil(topic, 'TagA || TagC', [ 'TagA', 'TagC' ]);
    assert(!got.includes('TagB'), 'TagB was delivered');
  },
  async retry(topic) {
    await send(topic, 'TagA', '1');
    const attempts = [];
    const consumer = consumerOf(topic);
    consumer.subscribe(topic, '*', async message => {
      attempts.push(message.reconsumeTimes);
      if (message.reconsumeTimes < 1) throw new Error('again');
    });
    await until(() => attempts.includes(1), attempts);
    await consumer.close();
    assert.deepStrictEqual(attempts, [ 0, 1 ]);
  },
  async delay(topic) {
    const message = new Message(topic, 'TagA', '1');
    message.delayTimeLevel = 1;
    await producer.send(message);
    await consumeUntil(topic, '*', [ '1' ]);
  },
  async resume(topic) {
    await send(topic, 'TagA', 'before');
    await consumeUntil(topic, '*', [ 'before' ]);
    await send(topic, 'TagA', 'after');
    assert.deepStrictEqual(await consumeUntil(topic, '*', [ 'after' ]), [ 'after' ], 'the committed offset is used');
  },
  async broadcast(topic) {
    await send(topic, 'TagA', 'old');
    const members = [ [], [] ];
    const consumers = members.map(got => {
      const consumer = consumerOf(topic, { isBroadcast: true });
      consumer.subscribe(topic, '*', async message => { got.push(`${message.body}`); });
      return consumer;
    });
    await until(async () => {
      await send(topic, 'TagA', 'new');
      return members.every(got => got.includes('new'));
    }, members);
    for (const consumer of consumers) await consumer.close();
  },
  async sql(topic) {
    for (const [ tag, body ] of [ [ 'TagA', '1' ], [ 'TagB', '2' ], [ 'TagC', '3' ] ]) await send(topic, tag, body);
    const expression = { expressionType: 'SQL92', subString: "TAGS IN ('TagA', 'TagC') AND note IS NULL" };
    assert.deepStrictEqual((await consumeUntil(topic, expression, [ '1', '3' ])).sort(), [ '1', '3' ]);
  },
};

function consumerOf(topic, options) {
  instances += 1;
  const given = { consumerGroup: `group-${topic}`, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', instanceName: `member-${instances}` };
  const consumer = new Consumer({ ...common, ...given, ...options });
  consumer.on('error', note);
  return consumer;
}

async function consumeUntil(topic, expression, bodies) {
  const got = [];
  const consumer = consumerOf(topic);
  consumer.subscribe(topic, expression, async message => { got.push(`${message.body}`); });
  await until(() => bodies.every(body => got.includes(body)), got);
  await consumer.close();
  return got;
}

function send(topic, tag, body) {
  return producer.send(new Message(topic, tag, body));
}

async function until(condition, state) {
  const end = Date.now() + LIMIT_MS;
  while (!await condition()) {
    assert(Date.now() < end, `not within ${LIMIT_MS} ms: ${JSON.stringify(state).slice(0, 500)}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

async function main() {
  await producer.ready();
  for (const use of asked) {
    try {
      await uses[use](`node-${use}`);
      console.log(`ok ${use}`);
    } catch (error) {
      console.log(`failed ${use}: ${error.message} ${errors.slice(-3).join(' | ').slice(0, 500)}`.replaceAll('\n', ' '));
    }
  }
  process.exit(0);
}

main();
