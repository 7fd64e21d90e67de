//! The kernel's checks in tables: request, errno, text. For every two rows of a table both faults
//! are put into one request, and the machine's kernel says which it reports: this gives the order.
//! Rows that a kernel without ESP and offload cannot reach are compared with the text only.

use crate::{
    kernel::{Kernel, against_the_kernel, comparable},
    stage::{Answer, Stage, attribute, message},
};

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
const ENOSYS: i32 = 38;
const EPROTONOSUPPORT: i32 = 93;

/// A request that is right until faults are put into it.
#[derive(Clone)]
struct Request {
    kind: u16,
    flags: u16,
    head: Vec<u8>,
    /// By type; a fault may change, add or take away.
    attributes: Vec<(u16, Vec<u8>)>,
}

impl Request {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.head[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn with(&mut self, kind: u16, value: &[u8]) {
        self.without(kind);
        self.attributes.push((kind, value.to_vec()));
    }

    fn without(&mut self, kind: u16) {
        self.attributes.retain(|(other, _)| *other != kind);
    }

    fn bytes(&self) -> Vec<u8> {
        let attributes = self.attributes.iter().flat_map(|(kind, value)| attribute(*kind, value));
        message(
            self.kind,
            self.flags,
            &self.head.iter().copied().chain(attributes).collect::<Vec<_>>(),
        )
    }
}

/// One check.
struct Row {
    fault: fn(&mut Request),
    errno: i32,
    text: &'static str,
    judge: Judge,
}

/// Who says what is right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judge {
    /// The machine's kernel too.
    Kernel,
    /// The row alone.
    Row,
}

const fn row(fault: fn(&mut Request), errno: i32, text: &'static str) -> Row {
    Row { fault, errno, text, judge: Judge::Kernel }
}

/// The machine's kernel has not what it takes.
const fn told(fault: fn(&mut Request), errno: i32, text: &'static str) -> Row {
    Row { fault, errno, text, judge: Judge::Row }
}

const AUTH: u16 = 1;
const CRYPT: u16 = 2;
const COMP: u16 = 3;
const ENCAP: u16 = 4;
const TMPL: u16 = 5;
const SEC_CTX: u16 = 8;
const REPLAY: u16 = 10;
const CO_ADDR: u16 = 14;
const POLICY_TYPE: u16 = 16;
const AEAD: u16 = 18;
const AUTH_TRUNC: u16 = 20;
const MARK: u16 = 21;
const TFC_PAD: u16 = 22;
const ESN: u16 = 23;
const EXTRA_FLAGS: u16 = 24;
const OFFLOAD: u16 = 28;
const IF_ID: u16 = 31;
const MTIMER: u16 = 32;
const DIRECTION: u16 = 33;
const KEEPALIVE: u16 = 34;
const PCPU: u16 = 35;
const IPTFS_DROP_TIME: u16 = 36;
const IPTFS_REORDER: u16 = 37;
const IPTFS_DONT_FRAG: u16 = 38;
const IPTFS_DELAY: u16 = 39;
const IPTFS_QUEUE: u16 = 40;
const IPTFS_SIZE: u16 = 41;

/// Where things are in `struct xfrm_usersa_info`.
const SELECTOR_FAMILY: usize = 40;
const SELECTOR_LEN: usize = 42;
const SPI: usize = 72;
const PROTOCOL: usize = 76;
const FAMILY: usize = 212;
const MODE: usize = 214;
const WINDOW: usize = 215;
const FLAGS: usize = 216;

fn algorithm(name: &str, numbers: &[u32], key: usize) -> Vec<u8> {
    let mut value = name.as_bytes().to_vec();
    value.resize(64, 0);
    value.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    value.resize(value.len() + key, 7);
    value
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// An ESP tunnel with AES-GCM.
fn state() -> Request {
    let mut request = Request { kind: 0x10, flags: 5, head: vec![0; 224], attributes: Vec::new() };
    request.put(56, &[192, 0, 2, 2]);
    request.put(SPI, &0x1000_u32.to_be_bytes());
    request.put(PROTOCOL, &[50]);
    request.put(80, &[192, 0, 2, 1]);
    request.put(FAMILY, &2_u16.to_ne_bytes());
    request.put(MODE, &[1]);
    request.with(AEAD, &algorithm("rfc4106(gcm(aes))", &[160, 128], 20));
    request
}

fn comp(request: &mut Request) {
    request.put(PROTOCOL, &[108]);
    request.without(AEAD);
    request.with(COMP, &algorithm("deflate", &[0], 0));
}

fn ah(request: &mut Request) {
    request.put(PROTOCOL, &[51]);
    request.without(AEAD);
    request.with(AUTH, &algorithm("hmac(sha1)", &[160], 20));
}

fn options(request: &mut Request) {
    request.put(PROTOCOL, &[60]);
    request.put(MODE, &[2]);
    request.without(AEAD);
    request.with(CO_ADDR, &[0; 16]);
}

fn out(request: &mut Request) {
    request.with(DIRECTION, &[2]);
}

fn inward(request: &mut Request) {
    request.with(DIRECTION, &[1]);
}

fn encap(request: &mut Request, kind: u8) {
    let mut value = vec![kind, 0, 0x11, 0x94, 0x11, 0x94];
    value.resize(24, 0);
    request.with(ENCAP, &value);
}

/// `verify_newsa_info`, `verify_replay`, then `attach_*` and `__xfrm_init_state`.
#[rustfmt::skip]
const STATES: &[Row] = &[
    row(|r| r.with(MARK, b"abc"), ERANGE, "Attribute failed policy validation"),
    row(|r| r.with(DIRECTION, &[3]), ERANGE, "integer out of range"),
    row(|r| r.with(PCPU, &[0; 5]), EINVAL, "invalid attribute length"),
    row(|r| r.put(FAMILY, &7_u16.to_ne_bytes()), EINVAL, "Invalid address family"),
    row(|r| r.put(SELECTOR_LEN, &[33]), EINVAL, "Invalid prefix length in selector (must be <= 32 for IPv4)"),
    row(|r| { r.put(SELECTOR_FAMILY, &10_u16.to_ne_bytes()); r.put(SELECTOR_LEN, &[129]); },
        EINVAL, "Invalid prefix length in selector (must be <= 128 for IPv6)"),
    row(|r| r.put(SELECTOR_FAMILY, &7_u16.to_ne_bytes()), EINVAL, "Invalid address family in selector"),
    row(|r| { ah(r); r.without(AUTH); }, EINVAL, "Missing required attribute for AH: AUTH_TRUNC or AUTH"),
    row(|r| { ah(r); r.with(TFC_PAD, &[0; 4]); }, EINVAL, "Invalid attributes for AH: AEAD, CRYPT, COMP, TFCPAD"),
    row(|r| r.with(COMP, &algorithm("deflate", &[0], 0)), EINVAL, "Invalid attribute for ESP: COMP"),
    row(|r| r.without(AEAD), EINVAL, "Missing required attribute for ESP: at least one of AUTH, AUTH_TRUNC, CRYPT, AEAD"),
    row(|r| r.with(CRYPT, &algorithm("cbc(aes)", &[128], 16)),
        EINVAL, "Invalid attribute combination for ESP: AEAD can't be used with AUTH, AUTH_TRUNC, CRYPT"),
    row(|r| { r.put(MODE, &[0]); r.with(TFC_PAD, &[0; 4]); }, EINVAL, "TFC padding can only be used in tunnel mode"),
    row(|r| r.with(IPTFS_DONT_FRAG, &[]), EINVAL, "IP-TFS options can only be used in IP-TFS mode"),
    row(|r| { comp(r); r.without(COMP); }, EINVAL, "Missing required attribute for COMP: COMP"),
    row(|r| { comp(r); r.with(AUTH, &algorithm("hmac(sha1)", &[160], 20)); },
        EINVAL, "Invalid attributes for COMP: AEAD, AUTH, AUTH_TRUNC, CRYPT, TFCPAD"),
    row(|r| { comp(r); r.put(SPI, &0x10000_u32.to_be_bytes()); }, EINVAL, "SPI is too large for COMP (must be < 0x10000)"),
    row(|r| { options(r); encap(r, 2); }, EINVAL, "Invalid attributes for DSTOPTS/ROUTING"),
    row(|r| { options(r); r.without(CO_ADDR); }, EINVAL, "Missing required COADDR attribute for DSTOPTS/ROUTING"),
    row(|r| r.put(PROTOCOL, &[17]), EINVAL, "Unsupported protocol"),
    row(|r| r.with(AEAD, &algorithm("rfc4106(gcm(aes))", &[160, 128], 19)), EINVAL, "Invalid AEAD attribute length"),
    row(|r| { r.without(AEAD); r.with(AUTH_TRUNC, &algorithm("hmac(sha1)", &[160, 96], 19)); },
        EINVAL, "Invalid AUTH_TRUNC attribute length"),
    row(|r| { r.without(AEAD); r.with(AUTH, &algorithm("hmac(sha1)", &[160], 19)); },
        EINVAL, "Invalid AUTH/CRYPT/COMP attribute length"),
    row(|r| r.with(SEC_CTX, &[9; 8]), EINVAL, "Invalid security context length"),
    row(|r| r.put(FLAGS, &[128]), EINVAL, "Missing required attribute for ESN"),
    row(|r| r.with(ESN, &words(&[129, 0, 0, 0, 0, 32])), EINVAL, "ESN bitmap length must be <= 128"),
    row(|r| r.with(ESN, &words(&[2, 0, 0, 0, 0, 32, 0])), EINVAL, "ESN attribute is too short to fit the full bitmap length"),
    row(|r| { comp(r); r.with(ESN, &words(&[1, 0, 0, 0, 0, 32, 0])); }, EINVAL, "ESN only supported for ESP and AH"),
    row(|r| { r.with(ESN, &words(&[1, 0, 0, 0, 0, 32, 0])); r.put(WINDOW, &[32]); },
        EINVAL, "ESN not compatible with legacy replay_window"),
    row(|r| { out(r); r.with(ESN, &words(&[1, 0, 0, 0, 0, 32, 0])); }, EINVAL, "Replay window should be 0 for output SA"),
    row(|r| { out(r); r.with(ESN, &words(&[0, 0, 1, 0, 0, 0])); }, EINVAL, "Replay seq and seq_hi should be 0 for output SA"),
    row(|r| { out(r); r.with(ESN, &words(&[1, 0, 0, 0, 0, 0, 1])); }, EINVAL, "Replay bmp_len should 0 for output SA"),
    row(|r| { out(r); r.with(ESN, &words(&[1, 0, 0, 0, 0, 0, 0])); }, EINVAL, "Replay bmp_len should 0 for output SA"),
    row(|r| { out(r); r.with(ESN, &words(&[0, 0, 0, 1, 0, 0])); }, EINVAL, "Replay oseq_hi should be 0 in non-ESN mode for output SA"),
    row(|r| { inward(r); r.with(ESN, &words(&[1, 0, 0, 0, 1, 32, 0])); }, EINVAL, "Replay seq_hi should be 0 in non-ESN mode for input SA"),
    row(|r| { inward(r); r.with(ESN, &words(&[1, 1, 0, 0, 0, 32, 0])); }, EINVAL, "Replay oseq and oseq_hi should be 0 for input SA"),
    row(|r| r.put(MODE, &[3]), EINVAL, "Unsupported mode"),
    row(|r| r.put(MODE, &[6]), EINVAL, "Unsupported mode"),
    row(|r| { ah(r); r.put(MODE, &[5]); inward(r); }, EINVAL, "IP-TFS mode only supported with ESP"),
    row(|r| r.put(MODE, &[5]), EINVAL, "IP-TFS mode requires in or out direction attribute"),
    row(|r| r.with(MTIMER, &[1, 0, 0, 0]), EINVAL, "MTIMER_THRESH attribute can only be set on ENCAP states"),
    row(|r| { out(r); encap(r, 2); r.with(MTIMER, &[1, 0, 0, 0]); }, EINVAL, "MTIMER_THRESH attribute should not be set on output SA"),
    row(|r| { out(r); r.put(FLAGS, &[2]); }, EINVAL, "Flag DECAP_DSCP should not be set for output SA"),
    row(|r| { out(r); r.put(FLAGS, &[16]); }, EINVAL, "Flag ICMP should not be set for output SA"),
    row(|r| { out(r); r.put(FLAGS, &[8]); }, EINVAL, "Flag WILDRECV should not be set for output SA"),
    row(|r| { out(r); r.put(WINDOW, &[32]); }, EINVAL, "Replay window should be 0 for output SA"),
    row(|r| { out(r); r.with(REPLAY, &words(&[0, 1, 0])); }, EINVAL, "Replay seq and bitmap should be 0 for output SA"),
    row(|r| { out(r); r.put(MODE, &[5]); r.with(IPTFS_DROP_TIME, &[0; 4]); },
        EINVAL, "IP-TFS drop time should not be set for output SA"),
    row(|r| { out(r); r.put(MODE, &[5]); r.with(IPTFS_REORDER, &[0; 2]); },
        EINVAL, "IP-TFS reorder window should not be set for output SA"),
    row(|r| { inward(r); r.put(FLAGS, &[4]); }, EINVAL, "Flag NOPMTUDISC should not be set for input SA"),
    row(|r| { inward(r); r.with(EXTRA_FLAGS, &[1, 0, 0, 0]); }, EINVAL, "Flag DONT_ENCAP_DSCP should not be set for input SA"),
    row(|r| { inward(r); r.with(EXTRA_FLAGS, &[2, 0, 0, 0]); }, EINVAL, "Flag OSEQ_MAY_WRAP should not be set for input SA"),
    row(|r| { inward(r); r.put(MODE, &[5]); r.with(IPTFS_DONT_FRAG, &[]); },
        EINVAL, "IP-TFS don't fragment should not be set for input SA"),
    row(|r| { inward(r); r.put(MODE, &[5]); r.with(IPTFS_DELAY, &[0; 4]); },
        EINVAL, "IP-TFS initial delay should not be set for input SA"),
    row(|r| { inward(r); r.put(MODE, &[5]); r.with(IPTFS_QUEUE, &[0; 4]); },
        EINVAL, "IP-TFS max queue size should not be set for input SA"),
    row(|r| { inward(r); r.put(MODE, &[5]); r.with(IPTFS_SIZE, &[0; 4]); },
        EINVAL, "IP-TFS packet size should not be set for input SA"),
    row(|r| r.with(PCPU, &[0; 4]), EINVAL, "SA_PCPU only supported with SA_DIR"),
    row(|r| r.with(AEAD, &algorithm("gcm", &[160, 128], 20)), ENOSYS, "Requested AEAD algorithm not found"),
    row(|r| { r.without(AEAD); r.with(AUTH_TRUNC, &algorithm("md9", &[160, 96], 20)); },
        ENOSYS, "Requested AUTH_TRUNC algorithm not found"),
    row(|r| { r.without(AEAD); r.with(AUTH, &algorithm("md9", &[160], 20)); }, ENOSYS, "Requested AUTH algorithm not found"),
    row(|r| { r.without(AEAD); r.with(CRYPT, &algorithm("rot13", &[128], 16)); }, ENOSYS, "Requested CRYPT algorithm not found"),
    told(comp, ENOSYS, "Requested COMP algorithm not found"),
    told(|r| r.put(MODE, &[4]), EPROTONOSUPPORT, "Requested mode not found"),
    told(ah, EPROTONOSUPPORT, "Requested type not found"),
    told(|r| { r.put(MODE, &[0]); r.put(SELECTOR_FAMILY, &10_u16.to_ne_bytes()); },
        EPROTONOSUPPORT, "Only tunnel modes can accommodate a change of family"),
    told(|r| { r.put(MODE, &[0]); r.put(FLAGS, &[32]); }, EPROTONOSUPPORT, "Only tunnel modes can accommodate an AF_UNSPEC selector"),
    told(|r| encap(r, 7), EINVAL, "Unsupported encapsulation type for ESP"),
    told(|r| { encap(r, 2); r.with(KEEPALIVE, &[9, 0, 0, 0]); }, EINVAL, "NAT keepalive is only supported for outbound SAs"),
    told(|r| { out(r); r.with(KEEPALIVE, &[9, 0, 0, 0]); }, EINVAL, "NAT keepalive is only supported for UDP encapsulation"),
    told(|r| { r.put(FLAGS, &[128]); r.with(ESN, &words(&[1, 0, 0, 0, 0, 33, 0])); },
        EINVAL, "ESN replay window is too large for the chosen bitmap size"),
    told(|r| { r.put(FLAGS, &[128]); r.with(ESN, &words(&[1, 0, 0, 0, 0, 0, 0])); }, EINVAL, "ESN replay window must be > 0"),
    told(|r| { inward(r); r.with(PCPU, &words(&[1 << 20])); }, ERANGE, "pCPU number too big"),
    // `xfrm_dev_state_add`
    told(|r| r.with(OFFLOAD, &[1, 0, 0, 0, 8, 0, 0, 0]), EINVAL, "Unrecognized flags in offload request"),
    told(|r| { out(r); r.with(OFFLOAD, &[1, 0, 0, 0, 2, 0, 0, 0]); }, EINVAL, "Mismatched SA and offload direction"),
    told(|r| { r.with(IF_ID, &[1, 0, 0, 0]); r.with(OFFLOAD, &[1, 0, 0, 0, 2, 0, 0, 0]); },
        EINVAL, "XFRM if_id is not supported in RX path"),
    told(|r| { r.with(TFC_PAD, &[8, 0, 0, 0]); r.with(OFFLOAD, &[1, 0, 0, 0, 0, 0, 0, 0]); },
        EINVAL, "TFC padding can't be offloaded"),
];

/// Where things are in `struct xfrm_userpolicy_info`.
const INDEX: usize = 156;
const POLICY_DIRECTION: usize = 160;
const ACTION: usize = 161;
const SHARE: usize = 163;

/// A policy out with a template.
fn policy() -> Request {
    let mut request = Request { kind: 0x13, flags: 5, head: vec![0; 168], attributes: Vec::new() };
    request.put(SELECTOR_FAMILY, &2_u16.to_ne_bytes());
    request.put(56, &[255; 32]);
    request.put(POLICY_DIRECTION, &[1]);
    request.with(TMPL, &template(|_| {}));
    request
}

fn template(fit: fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(&[192, 0, 2, 2]);
    (bytes[20], bytes[24], bytes[48]) = (50, 2, 1);
    bytes[28..32].copy_from_slice(&[192, 0, 2, 1]);
    bytes[52..64].fill(255);
    fit(&mut bytes);
    bytes
}

/// `verify_newpolicy_info`, `verify_sec_ctx_len`, then `xfrm_policy_construct`.
#[rustfmt::skip]
const POLICIES: &[Row] = &[
    row(|r| r.with(MARK, b"abc"), ERANGE, "Attribute failed policy validation"),
    row(|r| { r.with(DIRECTION, &[1]); }, EINVAL, "Invalid attribute SA_DIR"),
    row(|r| { r.with(PCPU, &[0; 4]); }, EINVAL, "Invalid attribute SA_PCPU"),
    row(|r| r.put(SHARE, &[4]), EINVAL, "Invalid policy share"),
    row(|r| r.put(ACTION, &[2]), EINVAL, "Invalid policy action"),
    row(|r| r.put(SELECTOR_LEN, &[33]), EINVAL, "Invalid prefix length in selector (must be <= 32 for IPv4)"),
    row(|r| { r.put(SELECTOR_FAMILY, &10_u16.to_ne_bytes()); r.put(SELECTOR_LEN, &[129]); },
        EINVAL, "Invalid prefix length in selector (must be <= 128 for IPv6)"),
    row(|r| r.put(SELECTOR_FAMILY, &7_u16.to_ne_bytes()), EINVAL, "Invalid selector family"),
    row(|r| r.put(POLICY_DIRECTION, &[3]), EINVAL, "Invalid policy direction"),
    row(|r| r.put(INDEX, &8_u32.to_ne_bytes()), EINVAL, "Policy index doesn't match direction"),
    row(|r| r.with(SEC_CTX, &[9; 8]), EINVAL, "Invalid security context length"),
    row(|r| r.with(POLICY_TYPE, &[9, 0, 0, 0, 0, 0]), EINVAL, "Invalid policy type"),
    row(|r| r.with(TMPL, &template(|_| {}).repeat(7)), EINVAL, "Template count must be <= XFRM_MAX_DEPTH (6)"),
    row(|r| r.with(TMPL, &template(|t| t[50] = 1)), EINVAL, "Mode in optional template not allowed in outbound policy"),
    row(|r| r.with(TMPL, &template(|t| (t[24], t[48]) = (10, 0))), EINVAL, "Mode in template doesn't support a family change"),
    row(|r| r.with(TMPL, &template(|t| t[48] = 6)), EINVAL, "Mode in template must be < XFRM_MODE_MAX (6)"),
    row(|r| r.with(TMPL, &template(|t| t[24] = 7)), EINVAL, "Invalid family in template"),
    row(|r| r.with(TMPL, &template(|t| t[20] = 17)), EINVAL, "Invalid XFRM protocol in template"),
    // `xfrm_dev_policy_add`
    told(|r| r.with(OFFLOAD, &[1, 0, 0, 0, 0, 0, 0, 0]), EINVAL, "Unrecognized flags in offload request"),
    told(|r| r.with(OFFLOAD, &[1, 0, 0, 0, 4, 0, 0, 0]), EINVAL, "Policy offload is not supported"),
];

/// An SPI of any number for ESP.
fn spi_request() -> Request {
    let mut request = state();
    request.kind = 0x16;
    request.without(AEAD);
    request.head.extend(words(&[0x100, 0x1ff]));
    request
}

const MIN: usize = 224;

/// `verify_spi_info`, then `xfrm_alloc_spi`.
#[rustfmt::skip]
const SPIS: &[Row] = &[
    row(|r| r.with(MARK, b"abc"), ERANGE, "Attribute failed policy validation"),
    row(|r| { comp(r); r.without(COMP); r.put(MIN, &words(&[0x100, 0x10000])); }, EINVAL, "IPCOMP SPI must be <= 65535"),
    row(|r| r.put(PROTOCOL, &[60]), EINVAL, "Invalid protocol, must be one of AH, ESP, IPCOMP"),
    row(|r| r.put(MIN, &words(&[2, 1])), EINVAL, "Invalid SPI range: min > max"),
    row(|r| r.with(PCPU, &words(&[1 << 20])), EINVAL, "pCPU number too big"),
];

/// Requests of each type about what is not there, or that nobody may send.
#[rustfmt::skip]
fn absent() -> Vec<(&'static str, Request, i32, &'static str)> {
    let ask = |kind: u16, flags: u16, head: Vec<u8>| Request { kind, flags, head, attributes: Vec::new() };
    let mut id = vec![0; 24];
    (id[0], id[19], id[20], id[22]) = (10, 1, 2, 50);
    let mut policy = vec![0; 64];
    policy[40] = 2;
    let aevent = [id.clone(), vec![0; 24]].concat();
    let with = |mut request: Request, kind, value: &[u8]| { request.with(kind, value); request };
    let mut upd = state();
    upd.kind = 0x1a;
    vec![
        ("DELSA", ask(0x11, 5, id.clone()), ESRCH, ""),
        ("GETSA", ask(0x12, 5, id.clone()), ESRCH, ""),
        ("GETSA of a protocol without SPIs", { let mut hao = id.clone(); hao[22] = 60; ask(0x12, 5, hao) }, EINVAL, ""),
        ("DELPOLICY", ask(0x14, 5, policy.clone()), ENOENT, ""),
        ("GETPOLICY", ask(0x15, 5, policy.clone()), ENOENT, ""),
        ("GETPOLICY of no direction", { let mut wrong = policy.clone(); wrong[60] = 9; ask(0x15, 5, wrong) }, EINVAL, "Invalid policy direction"),
        ("EXPIRE", ask(0x18, 5, [state().head, vec![0; 8]].concat()), ENOENT, ""),
        ("POLEXPIRE", ask(0x1b, 5, [self::policy().head, vec![0; 8]].concat()), ENOENT, ""),
        ("FLUSHSA", ask(0x1c, 5, vec![0; 4]), 0, ""),
        ("FLUSHPOLICY", ask(0x1d, 5, Vec::new()), 0, ""),
        ("FLUSHPOLICY of no kind", with(ask(0x1d, 5, Vec::new()), POLICY_TYPE, &[9, 0, 0, 0, 0, 0]), EINVAL, "Invalid policy type"),
        ("NEWAE without attributes", ask(0x1e, 0x105, aevent.clone()), EINVAL, "Missing required attribute for AE"),
        ("NEWAE without REPLACE", with(ask(0x1e, 5, aevent.clone()), REPLAY, &[0; 12]), EINVAL, "NLM_F_REPLACE flag is required"),
        ("NEWAE", with(ask(0x1e, 0x105, aevent.clone()), REPLAY, &[0; 12]), ESRCH, ""),
        ("GETAE", ask(0x1f, 5, aevent), ESRCH, ""),
        ("SA_DIR elsewhere", with(ask(0x12, 5, id.clone()), DIRECTION, &[1]), EINVAL, "Invalid attribute SA_DIR"),
        ("SA_PCPU elsewhere", with(ask(0x12, 5, id.clone()), PCPU, &[0; 4]), EINVAL, "Invalid attribute SA_PCPU"),
        ("too short", ask(0x12, 5, vec![0; 20]), EINVAL, "Invalid header length"),
        ("REPORT", ask(0x20, 5, vec![0; 60]), EINVAL, ""),
        ("NEWSADINFO", ask(0x22, 5, Vec::new()), EINVAL, ""),
        ("MAPPING", ask(0x26, 5, vec![0; 64]), EINVAL, ""),
        ("type 0x2a", ask(0x2a, 5, vec![0; 64]), EINVAL, ""),
        ("MIGRATE of nothing", ask(0x21, 5, policy), EINVAL, "Missing required MIGRATE attribute"),
        ("thresholds of IPv4", with(ask(0x24, 5, vec![0; 4]), 3, &[33, 0]), EINVAL, "Invalid hash threshold (must be <= 32 for IPv4)"),
        ("thresholds of IPv6", with(ask(0x24, 5, vec![0; 4]), 4, &[129, 0]), EINVAL, "Invalid hash threshold (must be <= 128 for IPv6)"),
    ]
}

fn verdict(answers: &[Answer]) -> (i32, String) {
    // An answer before the acknowledgement is well too.
    answers.iter().find_map(Answer::verdict).unwrap_or_default()
}

/// Each row alone, by us; and by the kernel, where it can.
fn hold(table: &[Row], base: fn() -> Request, kernel: Option<&Kernel>) {
    for (place, row) in table.iter().enumerate() {
        let mut request = base();
        (row.fault)(&mut request);
        let expected = (row.errno, row.text.to_owned());
        assert_eq!(verdict(&Stage::new().ask(&request.bytes())), expected, "ours, row {place}");
        if let Some(kernel) = kernel.filter(|_| row.judge == Judge::Kernel) {
            assert_eq!(
                verdict(&kernel.ask(&request.bytes())),
                expected,
                "the kernel's, row {place}"
            );
        }
    }
}

/// Every two faults together: whatever the kernel names, we name.
fn hold_order(table: &[Row], base: fn() -> Request, kernel: &Kernel) {
    let rows: Vec<_> = table.iter().filter(|row| row.judge == Judge::Kernel).collect();
    let mut pairs = 0;
    for first in &rows {
        for second in &rows {
            let mut request = base();
            (first.fault)(&mut request);
            (second.fault)(&mut request);
            let theirs = verdict(&kernel.ask(&request.bytes()));
            // Two faults may mend each other, and then it has no algorithm or no ESP.
            let missing =
                ["Requested AEAD algorithm not found", "Requested COMP algorithm not found"];
            if [0, EPROTONOSUPPORT].contains(&theirs.0) || missing.contains(&theirs.1.as_str()) {
                continue;
            }
            let ours = verdict(&Stage::new().ask(&request.bytes()));
            assert_eq!(ours, theirs, "{} and {}", first.text, second.text);
            pairs += 1;
        }
    }
    assert!(pairs * 2 > rows.len() * rows.len(), "{pairs} pairs are too few");
}

#[test]
fn newsa_checks_match_the_table() {
    hold(STATES, state, None);
    against_the_kernel(|kernel| {
        hold(STATES, state, Some(kernel));
        hold_order(STATES, state, kernel);
    });
}

#[test]
fn newpolicy_checks_match_the_table() {
    hold(POLICIES, policy, None);
    against_the_kernel(|kernel| {
        hold(POLICIES, policy, Some(kernel));
        hold_order(POLICIES, policy, kernel);
    });
}

#[test]
fn allocspi_checks_match_the_table() {
    hold(SPIS, spi_request, None);
    against_the_kernel(|kernel| {
        hold(SPIS, spi_request, Some(kernel));
        hold_order(SPIS, spi_request, kernel);
    });
}

#[test]
fn request_for_missing_entry_has_the_kernels_error() {
    against_the_kernel(|kernel| {
        for (what, request, errno, text) in absent() {
            let mut stage = Stage::new();
            let ours = verdict(&stage.ask(&request.bytes()));
            let theirs = verdict(&kernel.ask(&request.bytes()));
            assert_eq!(
                (ours, theirs),
                ((errno, text.to_owned()), (errno, text.to_owned())),
                "{what}: ours, the kernel's"
            );
            assert!(stage.heard.is_empty(), "{what}: nobody is told of nothing");
        }
    });
}

/// A full range: the machine's kernel allocates SPIs too.
#[test]
fn allocspi_in_full_range_is_refused() {
    against_the_kernel(|kernel| {
        let mut stage = Stage::new();
        let mut request = spi_request();
        request.put(MIN, &words(&[0x300, 0x300]));
        let first = (verdict(&stage.ask(&request.bytes())), verdict(&kernel.ask(&request.bytes())));
        assert_eq!((first.0.0, first.1.0), (0, 0));
        // Another reqid: another larval state.
        request.put(208, &[9]);
        let none = (ENOENT, "No SPI available in the requested range".to_owned());
        assert_eq!(verdict(&kernel.ask(&request.bytes())), none);
        assert_eq!(verdict(&stage.ask(&request.bytes())), none);
    });
}

/// `NLM_F_ECHO`, `REPLACE`, `EXCL`, `CREATE`, `APPEND` have no effect: the message type decides,
/// and there is no echo.
#[test]
fn create_flags_have_no_effect() {
    against_the_kernel(|kernel| {
        let mut stage = Stage::new();
        for more in [0, 8, 0x100, 0x200, 0x400, 0x800, 0xf08] {
            // NEWPOLICY twice, UPDPOLICY twice, GETPOLICY without `NLM_F_DUMP`, DELPOLICY twice,
            // SETDEFAULT, FLUSHPOLICY.
            for kind in [0x13, 0x13, 0x19, 0x19, 0x15, 0x14, 0x14, 0x27, 0x1d] {
                for acknowledged in [1, 5] {
                    let mut request = policy();
                    request.without(TMPL);
                    request.kind = kind;
                    request.flags = acknowledged | if kind == 0x15 { more & !0x300 } else { more };
                    if [0x14, 0x15].contains(&kind) {
                        request.head = [&request.head[..56], &[0, 0, 0, 0, 1, 0, 0, 0]].concat();
                    }
                    let (ours, theirs) =
                        (stage.ask(&request.bytes()), kernel.ask(&request.bytes()));
                    let what = format!("type {kind:#x}, flags {:#x}", request.flags);
                    assert_eq!(comparable(&ours), comparable(&theirs), "{what}");
                }
            }
        }
    });
}

/// An SPI without keys: it is found, and neither counts nor expires.
#[test]
fn larval_state_is_not_a_valid_state() {
    const SPI_OF_ID: usize = 16;
    against_the_kernel(|kernel| {
        let mut stage = Stage::new();
        let mut reserve = spi_request();
        reserve.put(MIN, &words(&[0x300, 0x300]));
        let reserved =
            (verdict(&stage.ask(&reserve.bytes())), verdict(&kernel.ask(&reserve.bytes())));
        assert_eq!((reserved.0.0, reserved.1.0), (0, 0));
        let spi = 0x300_u32.to_be_bytes();
        let mut counters = state();
        (counters.kind, counters.flags, counters.head) = (0x1e, 0x105, vec![0; 48]);
        counters.without(AEAD);
        counters.put(0, &[192, 0, 2, 2]);
        counters.put(SPI_OF_ID, &spi);
        (counters.head[20], counters.head[22]) = (2, 50);
        counters.with(REPLAY, &[0; 12]);
        let mut expire = state();
        (expire.kind, expire.head) = (0x18, [expire.head, vec![0; 8]].concat());
        expire.without(AEAD);
        expire.put(SPI, &spi);
        for (what, request) in [("NEWAE", counters), ("EXPIRE", expire)] {
            let refused = (EINVAL, "SA must be in VALID state".to_owned());
            assert_eq!(verdict(&stage.ask(&request.bytes())), refused, "{what}: ours");
            assert_eq!(verdict(&kernel.ask(&request.bytes())), refused, "{what}: the kernel's");
        }
    });
}
