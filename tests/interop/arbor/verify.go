package main

import (
	"bufio"
	"encoding/base64"

	forest "git.sr.ht/~whereswaldon/forest-go"
	"git.sr.ht/~whereswaldon/forest-go/store"
)

// verify says of each node what the library finds wrong with it: nothing is an empty text. What is whole and
// refers to nothing unknown is kept, for others to refer to.
func verify(input *bufio.Scanner) {
	nodes := store.NewMemoryStore()
	for input.Scan() {
		node, err := decode(input.Text())
		if err != nil {
			write(line{Event: "verified", Error: err.Error()})
			continue
		}
		l := describe("verified", node)
		references := node.ValidateReferences(nodes)
		l.Checks = map[string]string{
			"internal":   text(node.ValidateInternal()),
			"references": text(references),
			"signature":  text(signature(node, nodes)),
		}
		write(l)
		if references == nil {
			if err := nodes.Add(node); err != nil {
				write(line{Event: "store", Error: err.Error()})
			}
		}
	}
}

func decode(text string) (forest.Node, error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return forest.UnmarshalBinaryNode(raw)
}

// signature checks it with the author's key; an identity is its own author.
func signature(node forest.Node, nodes forest.Store) error {
	author, isIdentity := node.(*forest.Identity)
	if !isIdentity {
		found, _, err := nodes.GetIdentity(node.AuthorID())
		if err != nil {
			return err
		}
		if author, isIdentity = found.(*forest.Identity); !isIdentity {
			return errNoAuthor
		}
	}
	_, err := forest.ValidateSignature(node.(forest.SignatureValidator), author)
	return err
}

type constant string

func (c constant) Error() string { return string(c) }

const errNoAuthor = constant("the author is not held")

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
