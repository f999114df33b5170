#!/opt/python/bin/python3
"""Write zoo.cfg as the entry point of the image zookeeper:3.9 does, and run the server."""

import os

SETTINGS = {
    "tickTime": "ZOO_TICK_TIME",
    "initLimit": "ZOO_INIT_LIMIT",
    "syncLimit": "ZOO_SYNC_LIMIT",
    "autopurge.snapRetainCount": "ZOO_AUTOPURGE_SNAPRETAINCOUNT",
    "autopurge.purgeInterval": "ZOO_AUTOPURGE_PURGEINTERVAL",
    "maxClientCnxns": "ZOO_MAX_CLIENT_CNXNS",
    "standaloneEnabled": "ZOO_STANDALONE_ENABLED",
    "admin.enableServer": "ZOO_ADMINSERVER_ENABLED",
    "4lw.commands.whitelist": "ZOO_4LW_COMMANDS_WHITELIST",
}

lines = [f"{name}={os.environ[key]}" for name, key in SETTINGS.items() if key in os.environ]
servers = os.environ.get("ZOO_SERVERS", "server.1=localhost:2888:3888;2181").split()
extra = os.environ.get("ZOO_CFG_EXTRA", "").split()
with open("/data/zoo.cfg", "w") as config:
    config.write("\n".join(["dataDir=/data", *lines, *servers, *extra, ""]))
with open("/data/myid", "w") as number:
    number.write(os.environ.get("ZOO_MY_ID", "1"))
java = "/opt/jre/bin/java"
options = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
logging = "-Dlog4j.configuration=file:/conf/log4j.properties"
main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
os.execv(java, (java, *options, logging, "-cp", "/opt/cache/jars/*", main, "/data/zoo.cfg"))
