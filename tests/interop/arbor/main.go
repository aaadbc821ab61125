// Command arbor-peer is a genuine Arbor client for tests: sprout-go's Conn and Worker on forest-go's store.
//
//	arbor-peer [-name NAME] [-key FILE] [-tls] HOST:PORT
//	arbor-peer verify
//	arbor-peer relay [-grove DIR] [-listen HOST:PORT] [-plain HOST:PORT] [-peers HOST:PORT,...]
//
// The first form dials a relay and reads commands from standard input, one a line (see usage). The second reads
// nodes in base64url without padding, one a line, parents and authors first, and says what the library makes of
// each. The third is a relay. All write one JSON object a line to standard output; logs go to standard error.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"

	forest "git.sr.ht/~whereswaldon/forest-go"
)

const usage = `commands:
  version                       say our version
  list QUANTITY                 ask for communities
  identities QUANTITY           ask for identities
  query ID                      ask for a node
  leaves ID QUANTITY            ask for what is below a node
  ancestry ID LEVELS            ask for what is above a node
  subscribe ID                  join a community
  unsubscribe ID                leave a community
  bootstrap                     do what wisteria does when it starts
  identity                      announce our identity
  community NAME                make a community and announce it
  say ID TEXT                   reply to a node and announce it
  twig ID KEY/VERSION=VALUE,... TEXT  the same, with metadata
  quit`

// line is what is written for everything that happens; empty fields are left out.
type line struct {
	Event        string            `json:"event"`
	Error        string            `json:"error,omitempty"`
	ID           string            `json:"id,omitempty"`
	Type         string            `json:"type,omitempty"`
	Author       string            `json:"author,omitempty"`
	Parent       string            `json:"parent,omitempty"`
	Community    string            `json:"community,omitempty"`
	Conversation string            `json:"conversation,omitempty"`
	Depth        int               `json:"depth"`
	Created      int64             `json:"created_ms,omitempty"`
	Name         string            `json:"name,omitempty"`
	Content      string            `json:"content,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Count        *int              `json:"count,omitempty"`
	Checks       map[string]string `json:"checks,omitempty"`
	TLS          string            `json:"tls,omitempty"`
	Plain        string            `json:"plain,omitempty"`
}

var output sync.Mutex

func write(l line) {
	text, err := json.Marshal(l)
	if err != nil {
		log.Fatal(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

// outcome writes what became of a command: its error, if there was one.
func outcome(event string, err error) {
	l := line{Event: event}
	if err != nil {
		l.Error = err.Error()
	}
	write(l)
}

// describe tells a node.
func describe(event string, node forest.Node) line {
	l := line{
		Event:   event,
		ID:      node.ID().String(),
		Author:  node.AuthorID().String(),
		Parent:  node.ParentID().String(),
		Depth:   int(node.TreeDepth()),
		Created: node.CreatedAt().UnixNano() / 1e6,
	}
	switch n := node.(type) {
	case *forest.Identity:
		l.Type, l.Name = "identity", string(n.Name.Blob)
	case *forest.Community:
		l.Type, l.Name = "community", string(n.Name.Blob)
	case *forest.Reply:
		l.Type, l.Content = "reply", string(n.Content.Blob)
		l.Community, l.Conversation = n.CommunityID.String(), n.ConversationID.String()
	}
	if pairs, err := node.TwigMetadata(); err == nil && len(pairs.Values) > 0 {
		l.Metadata = make(map[string]string)
		for key, value := range pairs.Values {
			l.Metadata[key.String()] = string(value)
		}
	}
	return l
}

func main() {
	name := flag.String("name", "arbor-peer", "the name of our identity")
	key := flag.String("key", "", "a key file; made where it does not exist; none: a key for this run only")
	secure := flag.Bool("tls", false, "dial TLS, and take any certificate")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "arbor-peer [-name NAME] [-key FILE] [-tls] HOST:PORT | verify | relay ...")
		flag.PrintDefaults()
		fmt.Fprintln(os.Stderr, usage)
	}
	flag.Parse()
	if flag.Arg(0) == "relay" {
		serveRelay(flag.Args()[1:])
		return
	}
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	if flag.Arg(0) == "verify" {
		verify(input)
		return
	}
	p, err := dial(flag.Arg(0), *secure, *name, *key)
	if err != nil {
		log.Fatal(err)
	}
	for input.Scan() {
		verb, rest, _ := strings.Cut(input.Text(), " ")
		if verb == "quit" {
			return
		}
		p.do(verb, rest)
	}
}
