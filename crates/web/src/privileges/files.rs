//! Files, by Landlock (`landlock(7)`): nothing but settings of the network, to be read.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// The newest rules that are asked for; an older kernel has those that it knows.
const NEWEST: ABI = ABI::V6;

/// What `why` looks at, and the time zone of the log.
const READ: [&str; 3] = ["/proc/sys/net", "/etc/localtime", "/usr/share/zoneinfo"];

/// Directories that stay open: Landlock knows them by inode, and `/proc` makes them anew if nobody
/// holds them.
#[derive(Debug, Default)]
pub(super) struct Settings(Vec<PathFd>);

/// Fences them off, and TCP connections.
pub(super) fn fence() -> (Settings, Result<(), String>) {
    let mut held = Settings::default();
    let status = restrict(&mut held.0);
    let fenced = status.map_err(|error| error.to_string()).and_then(|status| match status {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("the kernel has no Landlock, or not for us".to_owned()),
    });
    (held, fenced)
}

fn restrict(held: &mut Vec<PathFd>) -> Result<RulesetStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::Signal)?
        .create()?;
    let to_read = AccessFs::ReadFile | AccessFs::ReadDir;
    for path in READ {
        // What is not there is not needed.
        let Ok(place) = PathFd::new(path) else { continue };
        let is_directory = std::path::Path::new(path).is_dir();
        let access: BitFlags<AccessFs> =
            if is_directory { to_read } else { AccessFs::ReadFile.into() };
        rules = rules.add_rule(PathBeneath::new(&place, access))?;
        held.push(place);
    }
    Ok(rules.restrict_self()?.ruleset)
}
