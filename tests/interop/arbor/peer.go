package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	forest "git.sr.ht/~whereswaldon/forest-go"
	"git.sr.ht/~whereswaldon/forest-go/fields"
	"git.sr.ht/~whereswaldon/forest-go/store"
	"git.sr.ht/~whereswaldon/forest-go/twig"
	sprout "git.sr.ht/~whereswaldon/sprout-go"
	"golang.org/x/crypto/openpgp"
	"golang.org/x/crypto/openpgp/packet"
)

const timeout = 20 * time.Second

// peer is a connection, its worker, who we are on it, and all nodes that the worker found in order.
type peer struct {
	*sprout.Worker
	me    *forest.Identity
	build *forest.Builder
	known bool // whether our identity was announced
}

// dial connects and serves the relay's requests in the background.
func dial(address string, secure bool, name, keyFile string) (*peer, error) {
	me, signer, err := identity(name, keyFile)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	if secure {
		conn, err = tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	} else {
		conn, err = net.Dial("tcp", address)
	}
	if err != nil {
		return nil, err
	}
	archive := store.NewArchive(store.NewMemoryStore())
	worker, err := sprout.NewWorker(make(chan struct{}), conn, archive)
	if err != nil {
		return nil, err
	}
	worker.DefaultTimeout = timeout
	p := &peer{Worker: worker, me: me, build: forest.As(me, signer)}
	if err := archive.Add(me); err != nil {
		return nil, err
	}
	archive.SubscribeToNewMessages(func(n forest.Node) { write(describe("stored", n)) })
	worker.Conn.OnAnnounce = func(c *sprout.Conn, id sprout.MessageID, nodes []forest.Node) error {
		for _, node := range nodes {
			write(describe("announced", node))
		}
		return worker.OnAnnounce(c, id, nodes)
	}
	write(describe("ready", me))
	go p.serve()
	return p, nil
}

// serve reads as Worker.Run does, but announces nothing by itself: commands do, and wait for the status.
func (p *peer) serve() {
	for {
		err := p.ReadMessage()
		var unsolicited sprout.UnsolicitedMessageError
		if errors.As(err, &unsolicited) {
			write(line{Event: "unsolicited", Error: err.Error()})
		} else if err != nil {
			write(line{Event: "closed", Error: err.Error()})
			os.Exit(1)
		}
	}
}

// identity makes ours, with the key in the file, in a new file, or in none, as the forest command does.
func identity(name, keyFile string) (*forest.Identity, forest.Signer, error) {
	entity, err := readOrMakeKey(keyFile)
	if err != nil {
		return nil, nil, err
	}
	signer, err := forest.NewNativeSigner(entity)
	if err != nil {
		return nil, nil, err
	}
	me, err := forest.NewIdentity(signer, name, nil)
	return me, signer, err
}

func readOrMakeKey(keyFile string) (*openpgp.Entity, error) {
	if keyFile != "" {
		file, err := os.Open(keyFile)
		if err == nil {
			defer file.Close()
			return openpgp.ReadEntity(packet.NewReader(file))
		} else if !os.IsNotExist(err) {
			return nil, err
		}
	}
	entity, err := openpgp.NewEntity("Arbor identity key", "Automatically generated", "none@arbor.chat", nil)
	if err != nil || keyFile == "" {
		return entity, err
	}
	file, err := os.OpenFile(keyFile, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0400)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return entity, entity.SerializePrivate(file, nil)
}

// do obeys one command and writes what came of it.
func (p *peer) do(verb, rest string) {
	first, second, _ := strings.Cut(rest, " ")
	switch verb {
	case "version":
		outcome(verb, p.SendVersion(after()))
	case "list", "identities":
		kind := map[string]fields.NodeType{"list": fields.NodeTypeCommunity, "identities": fields.NodeTypeIdentity}[verb]
		response, err := p.SendList(kind, number(first), after())
		p.answer(verb, response, err)
	case "query", "leaves", "ancestry", "subscribe", "unsubscribe":
		id := &fields.QualifiedHash{}
		if err := id.UnmarshalText([]byte(first)); err != nil {
			outcome(verb, err)
			return
		}
		p.ask(verb, id, number(second))
	case "bootstrap":
		p.BootstrapLocalStore(1024)
		outcome(verb, nil)
	case "identity":
		outcome(verb, p.introduce())
	case "community":
		community, err := p.build.NewCommunity(rest, nil)
		p.announce(verb, community, err)
	case "say":
		p.reply(verb, first, second, nil)
	case "twig":
		pairs, text, _ := strings.Cut(second, " ")
		metadata, err := pairsOf(pairs)
		if err != nil {
			outcome(verb, err)
			return
		}
		p.reply(verb, first, text, metadata)
	default:
		outcome(verb, errors.New("no such command"))
	}
}

func (p *peer) ask(verb string, id *fields.QualifiedHash, quantity int) {
	var response sprout.Response
	var err error
	switch verb {
	case "query":
		response, err = p.SendQuery([]*fields.QualifiedHash{id}, after())
	case "leaves":
		response, err = p.SendLeavesOf(id, quantity, after())
	case "ancestry":
		response, err = p.SendAncestry(id, quantity, after())
	case "subscribe":
		p.Subscribe(id)
		outcome(verb, p.SendSubscribeByID(id, after()))
		return
	case "unsubscribe":
		p.Unsubscribe(id)
		outcome(verb, p.SendUnsubscribeByID(id, after()))
		return
	}
	p.answer(verb, response, err)
}

// answer writes the nodes of a response, then their number.
func (p *peer) answer(verb string, response sprout.Response, err error) {
	if err != nil {
		outcome(verb, err)
		return
	}
	for _, node := range response.Nodes {
		write(describe("answered", node))
	}
	count := len(response.Nodes)
	write(line{Event: verb, Count: &count})
}

// introduce announces our identity, once.
func (p *peer) introduce() error {
	if p.known {
		return nil
	}
	err := p.SendAnnounce([]forest.Node{p.me}, after())
	p.known = err == nil
	return err
}

func (p *peer) reply(verb, id, text string, metadata []byte) {
	parent, err := p.node(id)
	if err != nil {
		outcome(verb, err)
		return
	}
	reply, err := p.build.NewReply(parent, text, metadata)
	p.announce(verb, reply, err)
}

// announce tells the relay of a node of ours, and of us before that.
func (p *peer) announce(verb string, node forest.Node, err error) {
	if err == nil {
		err = p.introduce()
	}
	if err == nil {
		err = p.SendAnnounce([]forest.Node{node}, after())
	}
	if err != nil {
		outcome(verb, err)
		return
	}
	write(describe(verb, node))
	if err := p.SubscribableStore.Add(node); err != nil {
		log.Print(err)
	}
}

// node finds a node in our store, or asks for it.
func (p *peer) node(text string) (forest.Node, error) {
	id := &fields.QualifiedHash{}
	if err := id.UnmarshalText([]byte(text)); err != nil {
		return nil, err
	}
	if node, known, err := p.SubscribableStore.Get(id); err != nil || known {
		return node, err
	}
	response, err := p.SendQuery([]*fields.QualifiedHash{id}, after())
	if err != nil {
		return nil, err
	}
	if len(response.Nodes) != 1 {
		return nil, fmt.Errorf("%s is unknown", text)
	}
	return response.Nodes[0], nil
}

func pairsOf(text string) ([]byte, error) {
	pairs := twig.New()
	for _, pair := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(pair, "=")
		key, err := twig.FromString(name)
		if err != nil {
			return nil, err
		}
		pairs, err = pairs.Set(key.Name, key.Version, []byte(value))
		if err != nil {
			return nil, err
		}
	}
	return pairs.MarshalBinary()
}

func after() <-chan time.Time {
	return time.After(timeout)
}

// number reads a quantity; one that is missing is as much as genuine clients ask for.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1024
	}
	return n
}
