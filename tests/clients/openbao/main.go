// Logs a VM in to OpenBao: its own JWT auth method, with nothing else of OpenBao around it.
//
//	login-by-openbao CONFIG ROLE < TOKEN
//
// In come what `bao write auth/pve/config` and `bao write auth/pve/role/vm` would be given, each as JSON or as `@` and a
// file with it, and on standard input the token. The method is set up anew in memory, fetches the keys from where CONFIG
// says, and judges the token. Out goes, as one line of JSON, whom OpenBao takes the bearer for and what it lets them do.
//
// A token that is refused ends this with status 1 and OpenBao's reason on standard error. A CONFIG or ROLE that OpenBao
// does not take as it stands ends it with 2, also where OpenBao itself would only warn or say nothing: a word that it does
// not know binds nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	jwtauth "github.com/openbao/openbao/builtin/credential/jwt"
	"github.com/openbao/openbao/sdk/v2/framework"
	"github.com/openbao/openbao/sdk/v2/logical"
)

// The name of the only role.
const role = "vm"

const (
	loggedIn = iota
	refused
	misconfigured
)

// What a login comes to.
type login struct {
	// The entity's name within the method: what `user_claim` chose.
	Alias string `json:"alias"`
	// What `claim_mappings` chose, and the role.
	Metadata map[string]string `json:"metadata"`
	Policies []string          `json:"policies"`
	// For how long OpenBao's own token is good, in seconds; 0 for what the mount says.
	TTL    int `json:"ttl"`
	MaxTTL int `json:"max_ttl"`
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	method, err := configured(ctx, os.Args[1:])
	if err != nil {
		end(misconfigured, err)
	}
	token, err := io.ReadAll(os.Stdin)
	if err != nil {
		end(misconfigured, err)
	}
	got, err := method.login(ctx, strings.TrimSpace(string(token)))
	if err != nil {
		end(refused, err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		end(misconfigured, err)
	}
	os.Exit(loggedIn)
}

func end(status int, err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(status)
}

// A mounted auth method and its storage.
type method struct {
	backend logical.Backend
	storage logical.Storage
}

func configured(ctx context.Context, arguments []string) (*method, error) {
	if len(arguments) != 2 {
		return nil, errors.New("usage: login-by-openbao CONFIG ROLE < TOKEN")
	}
	storage := &logical.InmemStorage{}
	backend, err := jwtauth.Factory(ctx, &logical.BackendConfig{
		// Some reasons are only logged: why keys could not be fetched, and which claim was not there.
		Logger: hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Warn, DisableTime: true}),
		// OpenBao's own defaults for a mount.
		System:      &logical.StaticSystemView{DefaultLeaseTTLVal: 32 * 24 * time.Hour, MaxLeaseTTLVal: 32 * 24 * time.Hour},
		StorageView: storage,
	})
	if err != nil {
		return nil, err
	}
	method := &method{backend, storage}
	writes := []struct {
		path      string
		operation logical.Operation
	}{{"config", logical.UpdateOperation}, {"role/" + role, logical.CreateOperation}}
	for i, write := range writes {
		data, err := document(arguments[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", write.path, err)
		}
		if err := method.knows(write.path, data); err != nil {
			return nil, err
		}
		answer, err := method.ask(ctx, write.operation, write.path, data)
		if err != nil {
			return nil, err
		}
		if answer != nil && len(answer.Warnings) > 0 {
			return nil, fmt.Errorf("%s: %s", write.path, strings.Join(answer.Warnings, "; "))
		}
	}
	return method, nil
}

func document(argument string) (map[string]any, error) {
	text := []byte(argument)
	if path, isFile := strings.CutPrefix(argument, "@"); isFile {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	var data map[string]any
	return data, json.Unmarshal(text, &data)
}

// OpenBao passes over words that it does not know.
func (m *method) knows(path string, data map[string]any) error {
	// A promise of every method that is built on OpenBao's framework.
	fields := m.backend.(interface {
		Route(path string) *framework.Path
	}).Route(path).Fields
	for word := range data {
		if fields[word] == nil {
			return fmt.Errorf("%s: OpenBao knows no %q", path, word)
		}
	}
	return nil
}

func (m *method) ask(ctx context.Context, operation logical.Operation, path string, data map[string]any) (*logical.Response, error) {
	answer, err := m.backend.HandleRequest(ctx, &logical.Request{
		Operation: operation, Path: path, Data: data, Storage: m.storage,
	})
	switch {
	case answer != nil && answer.IsError():
		return nil, fmt.Errorf("%s: %w", path, answer.Error())
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	default:
		return answer, nil
	}
}

func (m *method) login(ctx context.Context, token string) (*login, error) {
	answer, err := m.ask(ctx, logical.UpdateOperation, "login", map[string]any{"role": role, "jwt": token})
	if err != nil {
		return nil, err
	}
	if answer == nil || answer.Auth == nil {
		return nil, errors.New("login: OpenBao answered without a token")
	}
	auth := answer.Auth
	return &login{
		Alias:    auth.Alias.Name,
		Metadata: auth.Metadata,
		Policies: auth.Policies,
		TTL:      int(auth.TTL.Seconds()),
		MaxTTL:   int(auth.MaxTTL.Seconds()),
	}, nil
}
