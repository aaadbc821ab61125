package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"flag"
	"log"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	forest "git.sr.ht/~whereswaldon/forest-go"
	"git.sr.ht/~whereswaldon/forest-go/grove"
	"git.sr.ht/~whereswaldon/forest-go/store"
	sprout "git.sr.ht/~whereswaldon/sprout-go"
)

// serveRelay is a genuine relay: the library's Worker for each connection, one archive for all, and its supervised
// workers for the peers that it dials. It ends with its standard input. What is stored is written, node by node.
func serveRelay(arguments []string) {
	flags := flag.NewFlagSet("relay", flag.ExitOnError)
	directory := flags.String("grove", "", "where nodes are kept; none: in memory")
	address := flags.String("listen", "127.0.0.1:0", "for TLS, with a certificate of its own")
	plain := flags.String("plain", "127.0.0.1:0", "for TCP")
	peers := flags.String("peers", "", "addresses to dial with TLS, with commas between them")
	if err := flags.Parse(arguments); err != nil {
		log.Fatal(err)
	}
	nodes, err := open(*directory)
	if err != nil {
		log.Fatal(err)
	}
	archive := store.NewArchive(nodes)
	archive.SubscribeToNewMessages(func(n forest.Node) { write(describe("stored", n)) })
	certificate, err := selfSigned()
	if err != nil {
		log.Fatal(err)
	}
	secure, err := tls.Listen("tcp", *address, &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		log.Fatal(err)
	}
	open, err := net.Listen("tcp", *plain)
	if err != nil {
		log.Fatal(err)
	}
	write(line{Event: "ready", TLS: secure.Addr().String(), Plain: open.Addr().String()})
	go accept(secure, archive)
	go accept(open, archive)
	logger := log.New(os.Stderr, "", log.LstdFlags)
	for _, peer := range strings.Split(*peers, ",") {
		if peer != "" {
			config := &tls.Config{InsecureSkipVerify: true}
			sprout.LaunchSupervisedWorker(make(chan struct{}), peer, archive, config, logger)
		}
	}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
	}
}

func open(directory string) (forest.Store, error) {
	if directory == "" {
		return store.NewMemoryStore(), nil
	}
	nodes, err := grove.New(directory)
	if err != nil {
		return nil, err
	}
	return nodes, nodes.RebuildChildCache()
}

func accept(listener net.Listener, archive store.ExtendedStore) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Print(err)
			return
		}
		worker, err := sprout.NewWorker(make(chan struct{}), connection, archive)
		if err != nil {
			log.Print(err)
			connection.Close()
			continue
		}
		go worker.Run()
	}
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "a relay for tests"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, err
}
