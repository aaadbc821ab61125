// Command sprout-relay is the reference to compare with: a relay on sprout-go's Worker and forest-go's Grove.
//
//	sprout-relay DIRECTORY
//
// It keeps its nodes in DIRECTORY, listens on a free loopback port, and writes where as a line of JSON. It does what
// the relay of the library's authors does for each connection, and spares it what only costs time: its log goes
// nowhere, and no watcher reads the files again that it has just written.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"git.sr.ht/~whereswaldon/forest-go/grove"
	"git.sr.ht/~whereswaldon/forest-go/store"
	sprout "git.sr.ht/~whereswaldon/sprout-go"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "sprout-relay DIRECTORY")
		os.Exit(2)
	}
	nodes, err := grove.New(os.Args[1])
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
	log.SetOutput(io.Discard)
	archive := store.NewArchive(nodes)
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
