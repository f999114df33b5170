#!/opt/python/bin/python3
"""Run a broker as Kafka's script of this name does; the arguments are its file and overrides."""

import os
import sys

java = "/opt/jre/bin/java"
options = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
logging = "-Dlog4j.configuration=file:/conf/log4j.properties"
os.execv(
    java, (java, *options, logging, "-cp", "/opt/cache/jars/*", "kafka.Kafka", *sys.argv[1:])
)
