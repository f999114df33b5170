// The member that everybody writes first. It works, until something goes wrong.
//
//	go build -o naive docs/examples/judge/naive.go
//	zkconsumer judge ./naive --challenge claim
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
)

type object = map[string]any

// message has the fields of the judge's messages that the member uses.
type message struct {
	Type, Member, Group, Topic string
	Streams                    int
	WallMs                     int64 `json:"wall_ms"`
	Session, Id                int
	Data                       *string
	Children                   []string
	Ends                       []int
}

// naive is one member. ask sends a request, and calls a function with the reply.
type naive struct {
	reset                message
	root                 string
	session, lastID      int
	out                  []object
	waiting              map[int]func(message)
	threads, names       []string
	positions, committed map[int]int
}

func newNaive(reset message) *naive {
	return &naive{reset: reset, root: "/consumers/" + reset.Group, waiting: map[int]func(message){},
		positions: map[int]int{}, committed: map[int]int{}}
}

func (it *naive) ask(then func(message), op, path string, more object) {
	it.lastID++
	it.waiting[it.lastID] = then
	request := object{"type": "request", "id": it.lastID, "op": op, "path": path}
	for name, value := range more {
		request[name] = value
	}
	it.out = append(it.out, request)
}

// ---- the group -----------------------------------------------------------------------------------

func (it *naive) connected(m message) {
	if it.session != 0 {
		return
	}
	it.session = m.Session
	for _, path := range []string{"", "/ids", "/owners", "/offsets",
		"/owners/" + it.reset.Topic, "/offsets/" + it.reset.Topic} {
		it.ask(nil, "create", it.root+path, nil)
	}
	payload, _ := json.Marshal(object{"version": 1, "pattern": "static",
		"subscription": object{it.reset.Topic: it.reset.Streams},
		"timestamp":    fmt.Sprint(it.reset.WallMs)})
	it.ask(nil, "create", it.root+"/ids/"+it.reset.Member,
		object{"data": string(payload), "ephemeral": true})
	it.ask(it.members, "children", it.root+"/ids", object{"watch": true})
}

func (it *naive) members(reply message) {
	it.threads, it.names = nil, slices.Clone(reply.Children)
	for _, name := range reply.Children {
		it.ask(func(m message) { it.registration(name, m) }, "get", it.root+"/ids/"+name, nil)
	}
}

func (it *naive) registration(name string, reply message) {
	var found struct{ Subscription map[string]int }
	if reply.Data != nil {
		json.Unmarshal([]byte(*reply.Data), &found)
	}
	for number := range found.Subscription[it.reset.Topic] {
		it.threads = append(it.threads, fmt.Sprintf("%s-%d", name, number))
	}
	it.names = slices.DeleteFunc(it.names, func(one string) bool { return one == name })
	if len(it.names) == 0 {
		it.ask(it.assign, "get", "/brokers/topics/"+it.reset.Topic, nil)
	}
}

func (it *naive) assign(reply message) {
	if reply.Data == nil || len(it.threads) == 0 {
		return
	}
	var found struct{ Partitions map[string][]int }
	json.Unmarshal([]byte(*reply.Data), &found)
	var partitions []int
	for name := range found.Partitions {
		number, _ := strconv.Atoi(name)
		partitions = append(partitions, number)
	}
	sort.Ints(partitions)
	it.commit() // stop the world: give everything back
	for _, partition := range it.sorted() {
		it.ask(nil, "delete", fmt.Sprintf("%s/owners/%s/%d", it.root, it.reset.Topic, partition), nil)
	}
	clear(it.positions)
	sort.Strings(it.threads)
	each, more := len(partitions)/len(it.threads), len(partitions)%len(it.threads)
	for at, thread := range it.threads {
		first := each*at + min(at, more)
		end := first + each
		if at < more {
			end++
		}
		if strings.HasPrefix(thread, it.reset.Member+"-") {
			for _, partition := range partitions[first:end] {
				it.claim(partition, thread)
			}
		}
	}
}

func (it *naive) claim(partition int, thread string) {
	below := fmt.Sprintf("/%s/%d", it.reset.Topic, partition)
	it.ask(nil, "create", it.root+"/owners"+below, object{"data": thread, "ephemeral": true})
	it.ask(func(m message) {
		if m.Data != nil {
			it.committed[partition], _ = strconv.Atoi(*m.Data)
		}
		it.positions[partition] = it.committed[partition]
	}, "get", it.root+"/offsets"+below, nil)
}

// ---- messages ------------------------------------------------------------------------------------

func (it *naive) sorted() []int {
	var found []int
	for partition := range it.positions {
		found = append(found, partition)
	}
	sort.Ints(found)
	return found
}

func (it *naive) poll(m message) {
	for _, partition := range it.sorted() {
		if offset := it.positions[partition]; offset < m.Ends[partition] {
			it.positions[partition]++
			it.out = append(it.out, object{"type": "deliver", "partition": partition, "offset": offset})
			return
		}
	}
}

func (it *naive) commit() {
	for _, partition := range it.sorted() {
		offset, op := it.positions[partition], "create"
		before, isStored := it.committed[partition]
		if offset == before {
			continue
		}
		if isStored {
			op = "set"
		}
		it.committed[partition] = offset
		path := fmt.Sprintf("%s/offsets/%s/%d", it.root, it.reset.Topic, partition)
		it.ask(nil, op, path, object{"data": strconv.Itoa(offset)})
	}
}

// ---- the protocol --------------------------------------------------------------------------------

func (it *naive) answer(m message) []object {
	it.out = nil
	done := object{"type": "done"}
	switch m.Type {
	case "connected":
		it.connected(m)
		done["tick_s"] = 2.0
	case "tick":
		it.commit()
		done["tick_s"] = 2.0
	case "watch":
		it.ask(it.members, "children", it.root+"/ids", nil)
	case "poll":
		it.poll(m)
	case "close":
		it.commit()
		done["closed"] = true
	case "reply":
		then := it.waiting[m.Id]
		delete(it.waiting, m.Id)
		if then != nil {
			then(m)
		}
	}
	return append(it.out, done)
}

func main() {
	var member *naive
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			panic(err)
		}
		if m.Type == "reset" {
			member = newNaive(m)
		}
		for _, one := range member.answer(m) {
			encoder.Encode(one)
		}
		out.Flush()
	}
}
