// Command sprout-relay is the reference to compare with: a relay on sprout-go's Worker and forest-go's Grove.
//
//	sprout-relay [-lean] DIRECTORY
//
// It keeps its nodes in DIRECTORY, listens on a free loopback port, and writes where as a line of JSON. As the relay of
// the library's authors it watches DIRECTORY for nodes that others put there, and logs to standard error. With -lean
// it does neither.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	forest "git.sr.ht/~whereswaldon/forest-go"
	"git.sr.ht/~whereswaldon/forest-go/grove"
	"git.sr.ht/~whereswaldon/forest-go/store"
	sprout "git.sr.ht/~whereswaldon/sprout-go"
	"git.sr.ht/~whereswaldon/sprout-go/watch"
)

func main() {
	lean := flag.Bool("lean", false, "neither watch nor log")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "sprout-relay [-lean] DIRECTORY")
		os.Exit(2)
	}
	nodes, err := grove.New(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	if err := nodes.RebuildChildCache(); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("{\"sprout\": %q}\n", listener.Addr())
	archive := store.NewArchive(nodes)
	if *lean {
		log.SetOutput(io.Discard)
	} else if _, err := watch.Watch(flag.Arg(0), log.Default(), func(name string) { add(archive, name) }); err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		worker, err := sprout.NewWorker(make(chan struct{}), connection, archive)
		if err != nil {
			connection.Close()
			continue
		}
		go worker.Run()
	}
}

// add takes in a node that is in a file, unless it is there already.
func add(archive *store.Archive, name string) {
	data, err := os.ReadFile(name)
	if err != nil {
		log.Print(err)
		return
	}
	node, err := forest.UnmarshalBinaryNode(data)
	if err != nil {
		log.Print(err) // it is still being written
		return
	}
	if err := archive.Add(node); err != nil {
		log.Print(err)
	}
}
