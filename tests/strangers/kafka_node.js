// node kafka_node.js ZOOKEEPER GROUP TOPIC: a member of a group with kafka-node's consumer.
// It prints its events and `PARTITION OFFSET` of each message, and leaves when its input ends.
// The second request of the registration is delayed by 30 ms, as by a network.
const {Client, HighLevelConsumer} = require('kafka-node');
const [zookeeper, groupId, topic] = process.argv.slice(2);

const client = new Client(zookeeper, 'member');
const connection = client.zk.client;
const setData = connection.setData.bind(connection);
connection.setData = (path, ...rest) =>
  path.includes('/ids/') ? setTimeout(() => setData(path, ...rest), 30) : setData(path, ...rest);

const consumer = new HighLevelConsumer(client, [{topic}], {groupId});
for (const event of ['registered', 'rebalancing', 'rebalanced']) {
  consumer.on(event, () => console.log(event));
}
consumer.on('error', (error) => console.log('error', error.message));
consumer.on('message', (one) => console.log(one.partition, one.offset));

process.stdin.resume();
process.stdin.on('end', () => consumer.close(true, () => process.exit(0)));
