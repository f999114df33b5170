// The member that everybody writes first. It works, until something goes wrong.
//
//     zkconsumer judge docs/examples/judge/Naive.java --challenge claim

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;

/** One member. `ask` sends a request, and calls a function with the reply. */
public class Naive {
    private static final Gson GSON = new Gson();

    private final String me, topic, root, wallMs;
    private final int streams;
    private final Map<Integer, Consumer<JsonObject>> waiting = new HashMap<>();
    private final TreeMap<Integer, Integer> positions = new TreeMap<>();
    private final Map<Integer, Integer> committed = new HashMap<>();
    private final List<String> threads = new ArrayList<>();
    private List<JsonObject> out;
    private int lastId, unread;
    private boolean isRegistered;

    Naive(JsonObject reset) {
        me = reset.get("member").getAsString();
        topic = reset.get("topic").getAsString();
        root = "/consumers/" + reset.get("group").getAsString();
        streams = reset.get("streams").getAsInt();
        wallMs = reset.get("wall_ms").getAsString();
    }

    private static JsonObject message(Object... pairs) {
        JsonObject made = new JsonObject();
        for (int i = 0; i < pairs.length; i += 2)
            made.add((String) pairs[i], GSON.toJsonTree(pairs[i + 1]));
        return made;
    }

    private JsonObject ask(Consumer<JsonObject> then, String op, String path) {
        waiting.put(++lastId, then);
        out.add(message("type", "request", "id", lastId, "op", op, "path", path));
        return out.get(out.size() - 1);
    }

    // ---- the group ---------------------------------------------------------------------------

    private void connected() {
        if (isRegistered) return;
        isRegistered = true;
        for (String path : List.of("", "/ids", "/owners", "/offsets", "/owners/" + topic,
                "/offsets/" + topic))
            ask(null, "create", root + path);
        String payload = message("version", 1, "subscription", Map.of(topic, streams), "pattern",
                "static", "timestamp", wallMs).toString();
        JsonObject create = ask(null, "create", root + "/ids/" + me);
        create.addProperty("data", payload);
        create.addProperty("ephemeral", true);
        ask(this::members, "children", root + "/ids").addProperty("watch", true);
    }

    private void members(JsonObject reply) {
        threads.clear();
        JsonArray names = reply.has("children") ? reply.getAsJsonArray("children") : new JsonArray();
        unread = names.size();
        names.forEach(it -> ask(r -> registration(it.getAsString(), r), "get",
                root + "/ids/" + it.getAsString()));
    }

    private void registration(String name, JsonObject reply) {
        if (reply.has("data")) {
            JsonObject found = JsonParser.parseString(reply.get("data").getAsString())
                    .getAsJsonObject().getAsJsonObject("subscription");
            int count = found.has(topic) ? found.get(topic).getAsInt() : 0;
            for (int number = 0; number < count; number++) threads.add(name + "-" + number);
        }
        if (--unread == 0) ask(this::assign, "get", "/brokers/topics/" + topic);
    }

    private void assign(JsonObject reply) {
        if (!reply.has("data") || threads.isEmpty()) return;
        int partitions = JsonParser.parseString(reply.get("data").getAsString())
                .getAsJsonObject().getAsJsonObject("partitions").size();
        commit(); // stop the world: give everything back
        for (int one : positions.keySet()) ask(null, "delete", root + "/owners/" + topic + "/" + one);
        positions.clear();
        threads.sort(null);
        int each = partitions / threads.size(), more = partitions % threads.size();
        for (int at = 0; at < threads.size(); at++) {
            int first = each * at + Math.min(at, more), end = first + each + (at < more ? 1 : 0);
            if (threads.get(at).startsWith(me + "-"))
                for (int one = first; one < end; one++) claim(one, threads.get(at));
        }
    }

    private void claim(int partition, String thread) {
        JsonObject create = ask(null, "create", root + "/owners/" + topic + "/" + partition);
        create.addProperty("data", thread);
        create.addProperty("ephemeral", true);
        ask(reply -> {
            if (reply.has("data")) committed.put(partition, reply.get("data").getAsInt());
            positions.put(partition, committed.getOrDefault(partition, 0));
        }, "get", root + "/offsets/" + topic + "/" + partition);
    }

    // ---- messages ----------------------------------------------------------------------------

    private void poll(JsonArray ends) {
        for (Map.Entry<Integer, Integer> it : positions.entrySet()) {
            int partition = it.getKey(), offset = it.getValue();
            if (offset < ends.get(partition).getAsInt()) {
                it.setValue(offset + 1);
                out.add(message("type", "deliver", "partition", partition, "offset", offset));
                return;
            }
        }
    }

    private void commit() {
        positions.forEach((partition, offset) -> {
            if (offset.equals(committed.getOrDefault(partition, 0))) return;
            String op = committed.containsKey(partition) ? "set" : "create";
            committed.put(partition, offset);
            ask(null, op, root + "/offsets/" + topic + "/" + partition)
                    .addProperty("data", offset.toString());
        });
    }

    // ---- the protocol ------------------------------------------------------------------------

    List<JsonObject> answer(JsonObject told) {
        out = new ArrayList<>();
        JsonObject done = message("type", "done");
        switch (told.get("type").getAsString()) {
            case "connected" -> connected();
            case "watch" -> ask(this::members, "children", root + "/ids");
            case "poll" -> poll(told.getAsJsonArray("ends"));
            case "tick" -> commit();
            case "reply" -> {
                Consumer<JsonObject> then = waiting.remove(told.get("id").getAsInt());
                if (then != null) then.accept(told);
            }
            case "close" -> {
                commit();
                done.addProperty("closed", true);
            }
            default -> { }
        }
        if (List.of("connected", "tick").contains(told.get("type").getAsString()))
            done.addProperty("tick_s", 2.0);
        out.add(done);
        return out;
    }

    public static void main(String[] arguments) throws IOException {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var to = new PrintWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        Naive member = null;
        for (String line; (line = lines.readLine()) != null; to.flush()) {
            JsonObject told = JsonParser.parseString(line).getAsJsonObject();
            if (told.get("type").getAsString().equals("reset")) member = new Naive(told);
            for (JsonObject one : member.answer(told)) to.print(one + "\n");
        }
    }
}
