//! The grammar's words, one table per place. The parser matches against the tables, and errors list
//! them.

mod meaning;

use uxfrm_engine::{
    Action, Direction, Family, Mode, OffloadKind, PolicyFlags, PolicyKind, SaExtraFlags, SaFlags,
    SaProtocol, TemplateLevel, UdpEncapKind,
};

pub use self::meaning::AlgorithmKind;
pub(super) use self::meaning::*;

/// One word.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) word: &'static str,
    /// What has to come behind it, by the names of `ip xfrm state help`; empty for nothing.
    pub(super) takes: &'static str,
    pub(super) meaning: T,
}

/// The words of one place, in iproute2's order, which decides among abbreviations.
#[derive(Debug)]
pub(super) struct Table<T: 'static>(&'static [Entry<T>]);

impl<T> Table<T> {
    pub(super) fn exact(&self, text: &str) -> Option<&'static Entry<T>> {
        self.0.iter().find(|entry| entry.word == text)
    }

    /// `lib/utils.c: matches`: the first word that begins with `text`.
    pub(super) fn abbreviated(&self, text: &str) -> Option<&'static Entry<T>> {
        self.0.iter().find(|entry| !text.is_empty() && entry.word.starts_with(text))
    }

    /// The word that means this; `None` where no word does.
    pub(super) fn word_of(&self, meaning: &T) -> Option<&'static str>
    where
        T: PartialEq,
    {
        self.0.iter().find(|entry| entry.meaning == *meaning).map(|entry| entry.word)
    }

    /// All words with their meanings.
    pub(super) fn meanings(&self) -> impl Iterator<Item = (&'static str, &'static T)> {
        self.0.iter().map(|entry| (entry.word, &entry.meaning))
    }

    /// All of them, with what has to come behind them.
    pub(super) fn phrases(&self) -> Vec<(&'static str, &'static str)> {
        self.0.iter().map(|entry| (entry.word, entry.takes)).collect()
    }

    /// All of them.
    pub(super) fn words(&self) -> Vec<&'static str> {
        self.0.iter().map(|entry| entry.word).collect()
    }
}

/// The words of several places that a word may belong to.
macro_rules! words_of {
    ($($table:expr),+ $(,)?) => {{
        let mut words = Vec::new();
        $(words.extend($table.words());)+
        words
    }};
}
pub(super) use words_of;

macro_rules! table {
    ($(#[doc = $doc:literal])* $name:ident: $meaning:ty { $($word:literal $($takes:literal)? => $value:expr,)+ }) => {
        $(#[doc = $doc])*
        pub(super) const $name: Table<$meaning> = Table(&[
            $(Entry { word: $word, takes: concat!($($takes)?), meaning: $value },)+
        ]);
    };
}

table! {
/// Options before the object, in the order of iproute2's abbreviations; uxfrm's own come last.
OPTIONS: ProgramOption {
    "-loops" "COUNT" => ProgramOption::IgnoredWithValue,
    "-family" "FAMILY" => ProgramOption::Family,
    "-4" => ProgramOption::Inet,
    "-6" => ProgramOption::Inet6,
    "-human" => ProgramOption::Ignored,
    "-human-readable" => ProgramOption::Ignored,
    "-iec" => ProgramOption::Ignored,
    "-stats" => ProgramOption::Statistics,
    "-statistics" => ProgramOption::Statistics,
    "-details" => ProgramOption::Details,
    "-resolve" => ProgramOption::Ignored,
    "-oneline" => ProgramOption::Oneline,
    "-timestamp" => ProgramOption::Timestamp,
    "-tshort" => ProgramOption::ShortTimestamp,
    "-Version" => ProgramOption::Version,
    "-force" => ProgramOption::Force,
    "-batch" "FILE" => ProgramOption::Batch,
    "-brief" => ProgramOption::Ignored,
    "-json" => ProgramOption::Json,
    "-pretty" => ProgramOption::Pretty,
    "-rcvbuf" "SIZE" => ProgramOption::IgnoredWithValue,
    "-color" => ProgramOption::Ignored,
    "-help" => ProgramOption::Help,
    "-netns" "NAME" => ProgramOption::Namespace,
    "-Numeric" => ProgramOption::Ignored,
    "-all" => ProgramOption::Ignored,
    "-echo" => ProgramOption::Ignored,
    "-control" "PATH" => ProgramOption::Control,
} }

table! {
/// `monitor`
MONITOR: MonitorWord {
    "file" "FILE" => MonitorWord::File,
    "nokeys" => MonitorWord::NoKeys,
    "all" => MonitorWord::All,
    "all-nsid" => MonitorWord::AllNamespaces,
    "acquire" => MonitorWord::Group(0x1),
    "expire" => MonitorWord::Group(0x2),
    "SA" => MonitorWord::Group(0x4),
    "aevent" => MonitorWord::Group(0x10),
    "policy" => MonitorWord::Group(0x8),
    "report" => MonitorWord::Group(0x20),
    "help" => MonitorWord::Help,
} }

table! {
/// `save`
SAVE: SaveWord {
    "nokeys" => SaveWord::NoKeys,
    "index" => SaveWord::Index,
    "help" => SaveWord::Help,
} }

table! {
/// `sync`, beside FILE.
SYNC: SyncWord {
    "--dry-run" => SyncWord::DryRun,
    "--keep-others" => SyncWord::KeepOthers,
    "help" => SyncWord::Help,
} }

table! { FAMILIES: Family {
    "inet" => Family::V4,
    "inet6" => Family::V6,
} }

table! { PROGRAM_OBJECTS: () { "xfrm" "OBJECT" => (), } }

table! {
/// iproute2's, then uxfrm's own, so that `s` and `sa` stay iproute2's.
OBJECTS: Object {
    "state" => Object::State,
    "sa" => Object::State,
    "policy" => Object::Policy,
    "monitor" => Object::Monitor,
    "save" => Object::Save,
    "sync" => Object::Sync,
    "help" => Object::Help,
} }

table! { STATE_COMMANDS: StateCommand {
    "add" => StateCommand::Add,
    "update" => StateCommand::Update,
    "allocspi" => StateCommand::AllocSpi,
    "delete" => StateCommand::Delete,
    "deleteall" => StateCommand::DeleteAll,
    "delall" => StateCommand::DeleteAll,
    "list" => StateCommand::List,
    "show" => StateCommand::List,
    "lst" => StateCommand::List,
    "get" => StateCommand::Get,
    "flush" => StateCommand::Flush,
    "count" => StateCommand::Count,
    "help" => StateCommand::Help,
} }

table! { POLICY_COMMANDS: PolicyCommand {
    "add" => PolicyCommand::Add,
    "update" => PolicyCommand::Update,
    "delete" => PolicyCommand::Delete,
    "deleteall" => PolicyCommand::DeleteAll,
    "delall" => PolicyCommand::DeleteAll,
    "list" => PolicyCommand::List,
    "show" => PolicyCommand::List,
    "lst" => PolicyCommand::List,
    "get" => PolicyCommand::Get,
    "flush" => PolicyCommand::Flush,
    "count" => PolicyCommand::Count,
    "set" => PolicyCommand::Set,
    "setdefault" => PolicyCommand::SetDefault,
    "getdefault" => PolicyCommand::GetDefault,
    "help" => PolicyCommand::Help,
} }

table! {
/// `ID`
ID: IdWord {
    "src" "ADDR" => IdWord::Source,
    "dst" "ADDR" => IdWord::Destination,
    "proto" "XFRM-PROTO" => IdWord::Protocol,
    "spi" "SPI" => IdWord::Spi,
} }

table! {
/// `state add|update`, but for the ID.
STATE: StateWord {
    "mode" "MODE" => StateWord::Mode,
    "mark" "MARK" => StateWord::Mark,
    "reqid" "REQID" => StateWord::Reqid,
    "seq" "SEQ" => StateWord::Seq,
    "replay-window" "SIZE" => StateWord::ReplayWindow,
    "replay-seq" "SEQ" => StateWord::ReplaySeq,
    "replay-seq-hi" "SEQ" => StateWord::ReplaySeqHi,
    "replay-oseq" "SEQ" => StateWord::ReplayOseq,
    "replay-oseq-hi" "SEQ" => StateWord::ReplayOseqHi,
    "flag" "FLAG" => StateWord::Flag,
    "extra-flag" "EXTRA-FLAG" => StateWord::ExtraFlag,
    "sel" "SELECTOR" => StateWord::Selector,
    "limit" "LIMIT" => StateWord::Limit,
    "encap" "ENCAP-TYPE SPORT DPORT OADDR" => StateWord::Encap,
    "coa" "ADDR" => StateWord::CareOf,
    "ctx" "CTX" => StateWord::Context,
    "offload" "[ crypto | packet ] dev DEV dir DIR" => StateWord::Offload,
    "output-mark" "OUTPUT-MARK" => StateWord::OutputMark,
    // Not iproute2's: the kernel's name of the attribute, which other tools print. Value and mask
    // count as they are, 0 too.
    "set-mark" "OUTPUT-MARK" => StateWord::SetMark,
    "if_id" "IF_ID" => StateWord::IfId,
    "tfcpad" "LENGTH" => StateWord::TfcPadding,
    "dir" "DIR" => StateWord::Direction,
    "pcpu-num" "CPUNUM" => StateWord::Pcpu,
    // Not iproute2's either: it has none for these.
    "nat-keepalive" "SECONDS" => StateWord::NatKeepalive,
    "mtimer-thresh" "SECONDS" => StateWord::MappingAge,
    "enc" "ALGO-NAME ALGO-KEYMAT" => StateWord::Algorithm(AlgorithmKind::Enc),
    "auth" "ALGO-NAME ALGO-KEYMAT" => StateWord::Algorithm(AlgorithmKind::Auth),
    "auth-trunc" "ALGO-NAME ALGO-KEYMAT ALGO-TRUNC-LEN" => StateWord::Algorithm(AlgorithmKind::AuthTrunc),
    "comp" "ALGO-NAME" => StateWord::Algorithm(AlgorithmKind::Comp),
    "aead" "ALGO-NAME ALGO-KEYMAT ALGO-ICV-LEN" => StateWord::Algorithm(AlgorithmKind::Aead),
} }

table! {
/// `state allocspi`
SPI_REQUEST: SpiRequestWord {
    "mode" "MODE" => SpiRequestWord::Mode,
    "mark" "MARK" => SpiRequestWord::Mark,
    "reqid" "REQID" => SpiRequestWord::Reqid,
    "seq" "SEQ" => SpiRequestWord::Seq,
    "min" "SPI" => SpiRequestWord::Min,
    "max" "SPI" => SpiRequestWord::Max,
    "dir" "DIR" => SpiRequestWord::Direction,
    "pcpu-num" "CPUNUM" => SpiRequestWord::Pcpu,
} }

table! {
/// `state deleteall|list`
STATE_FILTER: StateFilterWord {
    "nokeys" => StateFilterWord::NoKeys,
    "mode" "MODE" => StateFilterWord::Mode,
    "reqid" "REQID" => StateFilterWord::Reqid,
    "flag" "FLAG" => StateFilterWord::Flag,
} }

table! { MARK: () { "mark" "MARK" => (), } }

table! { MASK: () { "mask" "MASK" => (), } }

table! { FLUSH_STATES: () { "proto" "XFRM-PROTO" => (), } }

table! { FLUSH_POLICIES: () { "ptype" "PTYPE" => (), } }

table! { PROTOCOLS: SaProtocol {
    "esp" => SaProtocol::Esp,
    "ah" => SaProtocol::Ah,
    "comp" => SaProtocol::Comp,
    "route2" => SaProtocol::Route2,
    "hao" => SaProtocol::Hao,
    "ipsec-any" => SaProtocol::Any,
} }

table! { MODES: Mode {
    "transport" => Mode::Transport,
    "tunnel" => Mode::Tunnel,
    "ro" => Mode::RouteOptimization,
    "in_trigger" => Mode::InTrigger,
    "beet" => Mode::Beet,
    "iptfs" => Mode::Iptfs,
} }

table! { STATE_FLAGS: SaFlags {
    "noecn" => SaFlags::NOECN,
    "decap-dscp" => SaFlags::DECAP_DSCP,
    "nopmtudisc" => SaFlags::NOPMTUDISC,
    "wildrecv" => SaFlags::WILDRECV,
    "icmp" => SaFlags::ICMP,
    "af-unspec" => SaFlags::AF_UNSPEC,
    "align4" => SaFlags::ALIGN4,
    "esn" => SaFlags::ESN,
} }

table! { STATE_EXTRA_FLAGS: SaExtraFlags {
    "dont-encap-dscp" => SaExtraFlags::DONT_ENCAP_DSCP,
    "oseq-may-wrap" => SaExtraFlags::OSEQ_MAY_WRAP,
} }

table! { STATE_DIRECTIONS: Direction {
    "in" => Direction::In,
    "out" => Direction::Out,
} }

pub(super) const ENCAPS: Table<UdpEncapKind> = Table(
    &const {
        const fn entry(meaning: UdpEncapKind) -> Entry<UdpEncapKind> {
            Entry { word: meaning.properties().word, takes: "", meaning }
        }
        let mut entries = [const { entry(UdpEncapKind::ALL[0]) }; UdpEncapKind::ALL.len()];
        let mut at = 0;
        while at < entries.len() {
            entries[at] = entry(UdpEncapKind::ALL[at]);
            at += 1;
        }
        entries
    },
);

table! { OFFLOADS: OffloadKind {
    "crypto" => OffloadKind::Crypto,
    "packet" => OffloadKind::Packet,
} }

table! { DEVICE: () { "dev" "DEV" => (), } }

table! { DIRECTION: () { "dir" "DIR" => (), } }

table! { LIMITS: LimitWord {
    "time-soft" "SECONDS" => LimitWord::TimeSoft,
    "time-hard" "SECONDS" => LimitWord::TimeHard,
    "time-use-soft" "SECONDS" => LimitWord::TimeUseSoft,
    "time-use-hard" "SECONDS" => LimitWord::TimeUseHard,
    "byte-soft" "SIZE" => LimitWord::ByteSoft,
    "byte-hard" "SIZE" => LimitWord::ByteHard,
    "packet-soft" "COUNT" => LimitWord::PacketSoft,
    "packet-hard" "COUNT" => LimitWord::PacketHard,
} }

table! {
/// `SELECTOR`, but for the upper-layer part.
SELECTOR: SelectorWord {
    "src" "ADDR[/PLEN]" => SelectorWord::Source,
    "dst" "ADDR[/PLEN]" => SelectorWord::Destination,
    "dev" "DEV" => SelectorWord::Device,
} }

table! {
/// `UPSPEC`
UPPER: UpperWord {
    "proto" "PROTO" => UpperWord::Protocol,
    // A mask is not iproute2's: IKE daemons ask for port ranges so.
    "sport" "PORT[/MASK]" => UpperWord::SourcePort,
    "dport" "PORT[/MASK]" => UpperWord::DestinationPort,
    "type" "NUMBER" => UpperWord::Type,
    "code" "NUMBER" => UpperWord::Code,
    "key" "{ DOTTED-QUAD | NUMBER }" => UpperWord::Key,
} }

table! {
/// `policy add|update`, but for the selector.
POLICY: PolicyWord {
    "dir" "DIR" => PolicyWord::Direction,
    "ctx" "CTX" => PolicyWord::Context,
    "mark" "MARK" => PolicyWord::Mark,
    "index" "INDEX" => PolicyWord::Index,
    "ptype" "PTYPE" => PolicyWord::Kind,
    "action" "ACTION" => PolicyWord::Action,
    "priority" "PRIORITY" => PolicyWord::Priority,
    "flag" "FLAG" => PolicyWord::Flag,
    "limit" "LIMIT" => PolicyWord::Limit,
    "tmpl" "TMPL" => PolicyWord::Template,
    "if_id" "IF_ID" => PolicyWord::IfId,
    "offload" "packet dev DEV" => PolicyWord::Offload,
} }

table! {
/// `policy delete|get`, but for the selector.
POLICY_KEY: PolicyKeyWord {
    "dir" "DIR" => PolicyKeyWord::Direction,
    "ctx" "CTX" => PolicyKeyWord::Context,
    "mark" "MARK" => PolicyKeyWord::Mark,
    "index" "INDEX" => PolicyKeyWord::Index,
    "ptype" "PTYPE" => PolicyKeyWord::Kind,
    "if_id" "IF_ID" => PolicyKeyWord::IfId,
} }

table! {
/// `policy deleteall|list`, but for the selector.
POLICY_FILTER: PolicyFilterWord {
    "dir" "DIR" => PolicyFilterWord::Direction,
    "index" "INDEX" => PolicyFilterWord::Index,
    "ptype" "PTYPE" => PolicyFilterWord::Kind,
    "action" "ACTION" => PolicyFilterWord::Action,
    "priority" "PRIORITY" => PolicyFilterWord::Priority,
    "flag" "FLAG" => PolicyFilterWord::Flag,
    "nosock" => PolicyFilterWord::NoSockets,
} }

table! { POLICY_DIRECTIONS: Direction {
    "in" => Direction::In,
    "out" => Direction::Out,
    "fwd" => Direction::Forward,
} }

table! { POLICY_DEFAULTS: Direction {
    "in" "ACTION" => Direction::In,
    "out" "ACTION" => Direction::Out,
    "fwd" "ACTION" => Direction::Forward,
} }

table! { POLICY_KINDS: PolicyKind {
    "main" => PolicyKind::Main,
    "sub" => PolicyKind::Sub,
} }

table! { ACTIONS: Action {
    "allow" => Action::Allow,
    "block" => Action::Block,
} }

table! {
/// `policy setdefault`
DEFAULT_ACTIONS: Action {
    "block" => Action::Block,
    "accept" => Action::Allow,
    "allow" => Action::Allow,
} }

table! { POLICY_FLAGS: PolicyFlags {
    "localok" => PolicyFlags::LOCALOK,
    "icmp" => PolicyFlags::ICMP,
    "cpu-acquire" => PolicyFlags::CPU_ACQUIRE,
} }

table! {
/// `TMPL`, but for the ID.
TEMPLATE: TemplateWord {
    "mode" "MODE" => TemplateWord::Mode,
    "reqid" "REQID" => TemplateWord::Reqid,
    "level" "LEVEL" => TemplateWord::Level,
} }

table! { LEVELS: TemplateLevel {
    "required" => TemplateLevel::Required,
    "use" => TemplateLevel::Use,
} }

table! {
/// `policy set`
THRESHOLDS: Family {
    "hthresh4" "LBITS RBITS" => Family::V4,
    "hthresh6" "LBITS RBITS" => Family::V6,
} }

#[cfg(test)]
mod tests {
    use super::*;

    /// Every beginning of every word means the first word that has it.
    #[test]
    fn abbreviation_selects_the_first_match() {
        for (text, word) in [
            ("a", "add"),
            ("al", "allocspi"),
            ("d", "delete"),
            ("deletea", "deleteall"),
            ("dela", "delall"),
            ("l", "list"),
            ("ls", "lst"),
            ("s", "show"),
        ] {
            assert_eq!(STATE_COMMANDS.abbreviated(text).unwrap().word, word);
        }
        for (text, word) in
            [("s", "show"), ("se", "set"), ("setd", "setdefault"), ("getd", "getdefault")]
        {
            assert_eq!(POLICY_COMMANDS.abbreviated(text).unwrap().word, word);
        }
        assert_eq!(MODES.abbreviated("t").unwrap().word, "transport");
        assert!(MODES.abbreviated("").is_none());
        assert!(MODES.abbreviated("tunnels").is_none());
        assert!(STATE.exact("mod").is_none());
    }
}
