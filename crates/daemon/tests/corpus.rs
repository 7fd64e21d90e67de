//! The corpora of the fuzzers for batch files, configurations and clients, replayed; see
//! `fuzz/README.md`.

mod client;
mod status;
mod text;

use uxfrm_testkit::fuzz::{Corpus, replay};

#[test]
fn batch() {
    replay("batch", text::batch);
}

#[test]
fn config() {
    replay("config", text::config);
}

#[test]
fn client() {
    replay("client", client::client);
}

#[test]
fn status() {
    replay("status", status::status);
}

/// What the corpora began with: the published scripts, every word of the grammar, the example, and
/// one of all that clients say.
#[test]
#[ignore = "writes fuzz/corpus: for `make fuzz-seeds`"]
fn seeds() {
    let corpus = Corpus::of("batch");
    corpus.add("seed-niantic", include_bytes!("../../../tests/interop/data/niantic-left.batch"));
    corpus.add("seed-flow-cache", FLOW_CACHE.as_bytes());
    corpus.add("seed-words", WORDS.as_bytes());
    let corpus = Corpus::of("config");
    corpus.add("seed-example", include_bytes!("../../../docs/example.toml"));
    corpus.add("seed-every-key", EVERY_KEY.as_bytes());
    let corpus = Corpus::of("client");
    for (name, input) in client::seeds() {
        corpus.add(&format!("seed-{name}"), &input);
    }
    let corpus = Corpus::of("status");
    for (name, input) in status::seeds() {
        corpus.add(&format!("seed-{name}"), &input);
    }
}

const FLOW_CACHE: &str = "\
ip xfrm state add src 192.168.11.2 dst 192.168.11.1 spi 1 proto esp \\
mode tunnel reqid 1 auth sha1 0x1c0cf2bb72ce67ba245b593076dfb27a enc 'cbc(aes)' \"0x1c0cf2bb72ce67ba245b593076dfb27a\"
ip xfrm policy add src 192.168.13.0/24 dst 192.168.12.0/24 dir out \\
tmpl dst 192.168.11.1 proto esp mode tunnel reqid 1
";

const WORDS: &str = "\
xfrm state add src ::1 dst ::2 proto esp spi 0x10 mode transport mark 0x10 mask 0xf0 reqid 16 seq 9 replay-window 128 replay-seq 7 replay-oseq 8 flag esn flag decap-dscp extra-flag oseq-may-wrap sel src fd00::/16 dst any proto tcp sport 80 dport 0x1f90 limit time-soft 1 limit byte-hard 6 encap espinudp 4500 4501 0.0.0.0 output-mark 3 mask 7 if_id 5 tfcpad 1400 dir in offload packet dev eth4 dir in auth-trunc hmac(sha256) 0xaa 128
xfrm policy update src 10.0.0.0/8 dst 10.1.0.0/16 proto icmp type 8 code 0 dir fwd priority 100 index 3 action block flag icmp if_id 9 mark 7 ptype main tmpl src 10.0.0.1 dst any proto esp mode tunnel level use tmpl proto comp
xfrm state delete src 1.2.3.4 dst 1.2.3.5 proto ah spi 7 mark 1
ip -6 x s allocspi src ::1 dst ::2 proto esp min 256 max 512
xfrm state flush proto esp
xfrm policy deleteall dir in
xfrm policy set hthresh4 24 32 hthresh6 64 128
xfrm policy setdefault in block fwd accept out accept
xfrm policy get dir in index 3
xfrm state list nokeys # comment
";

const EVERY_KEY: &str = "\
[host]
tun = 'uxfrm0'
mtu = 1500
clamp_mss = true
[wire]
encapsulation = 'esp'
udp_ports = [4500, 500]
mark = 0x75780001
table = 30000
[xfrm]
batch = ['a.batch', \"b\\u00e4.batch\"]
sequences = 's'
[status]
group = 'root'
[runtime]
workers = 2
pin = false
[crypto]
backend = 'portable'
";
