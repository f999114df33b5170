// Uses ZooKeeper as kafka-node does. Prints one line for each result. Argument: the connect string.
'use strict'
const zookeeper = require('node-zookeeper-client')

const client = zookeeper.createClient(process.argv[2], { sessionTimeout: 10000, spinDelay: 20 })
const say = (...words) => console.log(words.join(' '))
const call = (method, ...parameters) =>
  new Promise((resolve, reject) => {
    client[method](...parameters, (error, ...results) => (error ? reject(error) : resolve(results)))
  })
const named = (event) => say('event', event.getName(), event.getPath())

async function main () {
  await call('create', '/a', Buffer.from('1'), zookeeper.CreateMode.PERSISTENT)
  await call('create', '/a/quiet', zookeeper.CreateMode.PERSISTENT)
  const [numbered] = await call('create', '/a/n-', zookeeper.CreateMode.EPHEMERAL_SEQUENTIAL)
  say('numbered', numbered)
  const [data, stat] = await call('getData', '/a', named)
  say('data', data, stat.version, stat.numChildren)
  const [children] = await call('getChildren', '/a', named)
  say('children', children.sort().join(','))
  await call('exists', '/later', named)
  await call('exists', '/a/quiet', named)
  client.on('disconnected', () => say('disconnected'))
  client.on('connected', () => say('reconnected'))
  say('watching')
  // The test cuts the connection, changes znodes, and creates /end at last.
  const isOver = () => call('exists', '/end').then(([end]) => Boolean(end), () => false)
  while (!await isOver()) await new Promise((resolve) => setTimeout(resolve, 20))
  await new Promise((resolve, reject) => {
    client.transaction()
      .create('/t', Buffer.from('2'))
      .setData('/a', Buffer.from('3'))
      .check('/t')
      .remove('/end')
      .commit((error) => (error ? reject(error) : resolve()))
  })
  const refused = await call('create', '/a').catch((error) => error)
  say('refused', refused.getName())
  const [acl] = await call('getACL', '/a')
  say('acl', acl[0].permission, acl[0].id.scheme, acl[0].id.id)
  client.once('disconnected', () => process.exit(0))
  client.close()
}

client.once('connected', () => main().catch((error) => { say('failed', error.stack); process.exit(1) }))
client.connect()
