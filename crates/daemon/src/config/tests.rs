use super::*;

const EXAMPLE: &str = include_str!("../../../../docs/example.toml");

/// The example's keys stand for the defaults, but for the batch files; with the commented ones
/// too.
#[test]
fn example_config_equals_defaults() {
    let mut example = Config::parse("example.toml", EXAMPLE).unwrap();
    assert_eq!(example.xfrm.batch, [Path::new("states.batch"), Path::new("policies.batch")]);
    example.xfrm.batch.clear();
    assert_eq!(example.xfrm.sequences, None);
    assert_eq!(example, Config::default());
    assert_eq!(Config::parse("empty", "").unwrap(), Config::default());
}

#[test]
fn config_errors_name_place_and_expectation() {
    for (text, message) in [
        (
            "[hots]\ntun = 'x'",
            "c.toml:1:2: unknown field `hots`, expected one of `host`, `inline`, `wire`",
        ),
        (
            "[host]\n tum = 'x'",
            "c.toml:2:2: unknown field `tum`, expected one of `tun`, `mtu`, `clamp_mss`",
        ),
        ("[host]\nmtu = 100", "c.toml:2:7: an MTU of 100 bytes; it has to be from 1280 to 65535"),
        (
            "[host]\nmtu = 1279",
            "it has to be from 1280 to 65535. Below 1280 the kernel switches IPv6 off on the TUN. For a \
             narrower path set the MTU of the route to the peer: ip route change … mtu N",
        ),
        (
            "[host]\nmtu = 65536",
            "c.toml:2:7: an MTU of 65536 bytes; it has to be from 1280 to 65535",
        ),
        (
            "[host]\ntun = 'sixteen-letters-'",
            "c.toml:2:7: \"sixteen-letters-\" can't be an interface's name",
        ),
        ("[host]\ntun = 'a/b'", "1 to 15 characters"),
        (
            "[host]\nmtu = 'x'",
            "c.toml:2:7: invalid value: string \"x\", expected \"auto\" or a number of bytes",
        ),
        ("[host]\nguard = 'on'", "unknown variant `on`, expected one of `auto`, `require`, `off`"),
        ("[wire]\ntable = 254", "c.toml:2:9: routing table 254 is the system's"),
        (
            "[wire]\nmark = 0x8000001",
            "c.toml:2:1: mark 0x8000001 has the bit 0x8000000, by which uxfrm leads packets",
        ),
        ("[wire]\nmark = 0", "c.toml:2:8: invalid value: integer `0`"),
        (
            "[wire]\nudp_ports = [0]",
            "c.toml:2:14: invalid value: integer `0`, expected a whole number from 1 to 65535",
        ),
        ("[wire]\nencapsulation = 'gre'", "unknown variant `gre`, expected `esp`"),
        (
            "[inline]\nprotected = 'a'\nwire = 'b'\n[wire]\n af_xdp = 'b'",
            "c.toml:5:2: af_xdp is for host mode; with [inline], wire_by there says the same",
        ),
        (
            "[wire]\ngather = 10001",
            "c.toml:2:10: frames are gathered for 10001 microseconds; it can be 0 to 10000",
        ),
        (
            "[wire]\ngather = 100",
            "c.toml:2:1: gather is for devices read by AF_XDP, and there is none",
        ),
        (
            "[wire]\n# gather = 5: frames gather\ngather = 100",
            "c.toml:3:1: gather is for devices read by AF_XDP, and there is none",
        ),
        ("[wire]\nudp_ports = [4500, 5, 4500]", "c.toml:2:1: UDP port 4500 is there twice"),
        ("[wire]\naf_xdp = ''", "c.toml:2:10: \"\" can't be an interface's name"),
        ("[runtime]\nworkers = 0", "c.toml:2:11: 0 workers; there have to be 1 to 256"),
        ("[runtime]\nworkers = 257", "c.toml:2:11: 257 workers; there have to be 1 to 256"),
        ("[crypto]\nbackend = 'ring'", "expected one of `auto`, `ipsec-mb`, `portable`"),
        ("x", "c.toml:1:2: "),
        ("[host]\nmtu = -1", "c.toml:2:7: an MTU of -1 bytes; it has to be from 1280 to 65535"),
        ("[host]\ntun = 'all'", "c.toml:2:7: \"all\" can't be an interface's name"),
        ("[host]\nguard = true", "c.toml:2:9: expected text in quotes"),
        (
            "[wire]\ntable = -1",
            "c.toml:2:9: there is no routing table -1; any from 1 to 4294967295",
        ),
        (
            "[wire]\nudp_ports = 4500",
            "c.toml:2:13: invalid type: integer `4500`, expected a list in square brackets",
        ),
        (
            "[control]\nenabled = 'yes'",
            "c.toml:2:11: invalid type: string \"yes\", expected true or false",
        ),
        (
            "[status]\ngroup = 'no-such-group'",
            "c.toml:2:9: there is no group \"no-such-group\" on this machine",
        ),
        ("[status]\ngroup = -1", "c.toml:2:9: -1 is no group's number"),
        ("[status]\ngroup = 1.5", "c.toml:2:9: "),
        (
            "[control]\nuser = 'root'",
            "string \"root\", expected a whole number from 0 to 4294967295",
        ),
        ("[control]\nsocket = ''", "c.toml:2:1: socket is an empty path"),
        (
            "[xfrm]\nbatch = [1]",
            "c.toml:2:10: invalid type: integer `1`, expected a path in quotes",
        ),
        ("[cache]\noutbound = 1", "integer `1`, expected a section with ipv4 and ipv6"),
        ("[[host]]\ntun = 'a'", "c.toml:1:1: there is one section host: it begins with [host]"),
        ("host = ['a']", "c.toml:1:8: there is one section host: it begins with [host]"),
        ("[device]\nname = 'a'", "c.toml:1:1: devices are a list: each begins with [[device]]"),
        ("[[device]]\nname = 'a/b'", "c.toml:2:8: \"a/b\" can't be an interface's name"),
        (
            "[[device]]\nname = 'nic0'\n[[device]]\nname = 'uxfrm0'",
            "c.toml:4:1: uxfrm0 is the TUN that uxfrm makes ([host] tun); name another device",
        ),
        (
            "[[device]]\nname = 'nic0'\nvfs = 65",
            "c.toml:3:7: 65 virtual functions; there can be 0 to 64",
        ),
        (
            "[[device]]\nname = 'thirteen-char'\nvfs = 11",
            "c.toml:3:1: thirteen-charv10 is too long",
        ),
        ("[[device]]\nname = 'nic0'\nover = 'uxfrm0'", "c.toml:3:1: uxfrm0 is the TUN"),
        (
            "[[device]]\nname = 'nic0'\n[[device]]\nname = 'nic1'\ntrust = true",
            "c.toml:5:1: trust is in virtual functions, and this device has none: say vfs, too",
        ),
        ("[host]\ntun = 'a'\n[wire]\naf_xdp = 'a'", "c.toml:4:1: a is the TUN"),
        ("[host]\ntun = 'b'\n[inline]\nprotected = 'a'\nwire = 'b'", "c.toml:5:1: b is the TUN"),
    ] {
        let shown = Config::parse("c.toml", text).unwrap_err().to_string();
        assert!(shown.contains(message), "{shown}\n{message}");
    }
}

#[test]
fn config_errors_are_all_reported_in_order() {
    for (text, lines) in [
        ("[wire]\nudp_ports = [1, 2\nmark = 3\n[host]\nmtu = 1", &["c.toml:"][..]),
        // Of keys and values, in sections and lists, with each value of the same key.
        (
            "[host]\nmtu = 1\ntum = 'x'\nguard = 'on'\n[hots]\n[wire]\nudp_ports = [0, 5]\n[[device]]\nvfs = 65\nname = 'a/b'\n\
             [[device]]\nname = 'nic1'\nprofil = 'niantic'\n[runtime]\nworkers = 0",
            &[
                "c.toml:2:7: an MTU of 1 bytes",
                "c.toml:3:1: unknown field `tum`",
                "c.toml:4:9: unknown variant `on`",
                "c.toml:5:2: unknown field `hots`",
                "c.toml:7:14: invalid value: integer `0`",
                "c.toml:9:7: 65 virtual functions",
                "c.toml:10:8: \"a/b\" can't be an interface's name",
                "c.toml:13:1: unknown field `profil`",
                "c.toml:15:11: 0 workers",
            ],
        ),
        // What is missing, beside what is wrong elsewhere; and not where something wrong stands
        // in its place.
        (
            "[inline]\nprotected = 'a'\n[host]\nmtu = 1",
            &["c.toml:1:1: missing field `wire`", "c.toml:4:7: an MTU of 1 bytes"],
        ),
        ("[inline]\nprotected = 'a'\nwire = 'a b'", &["c.toml:3:8: \"a b\" can't be"]),
        ("[[device]]\nvfs = 65", &["c.toml:1:1: missing field `name`", "c.toml:2:7: 65 virtual"]),
        // Sections of the wrong kind.
        (
            "wire = 3\n[[host]]\nmtu = 1\n[device]\nname = 'a'",
            &[
                "c.toml:1:8: ",
                "c.toml:2:1: there is one section host",
                "c.toml:4:1: devices are a list",
            ],
        ),
        // What goes with nothing else, once all values are right by themselves.
        (
            "[wire]\ngather = 1\nudp_ports = [1, 1]\n[control]\nsocket = ''\n[cache.inbound]\nipv4 = { mode = 'off', entries = 16 }\n\
             ipv6 = { memory = 1 }\n[[device]]\nname = 'uxfrm0'\n[[device]]\nname = 'a'\nover = 'uxfrm0'",
            &[
                "c.toml:2:1: gather is for devices",
                "c.toml:3:1: UDP port 1 is there twice",
                "c.toml:5:1: socket is an empty path",
                "c.toml:7:24: entries does nothing",
                "c.toml:8:10: 1 bytes are less",
                "c.toml:10:1: uxfrm0 is the TUN",
                "c.toml:13:1: uxfrm0 is the TUN",
            ],
        ),
        ("[wire]\ngather = 1\n[host]\nmtu = 1", &["c.toml:4:7: an MTU of 1 bytes"]),
    ] {
        let shown = Config::parse("c.toml", text).unwrap_err().to_string();
        let said: Vec<&str> = shown.lines().collect();
        assert_eq!(said.len(), lines.len(), "{shown}");
        for (said, line) in said.iter().zip(lines) {
            assert!(said.starts_with(line), "{shown}\n{line}");
        }
    }
}

#[test]
fn every_backend_has_its_name() {
    for (name, backend) in [
        ("auto", BackendSetting::Auto),
        ("ipsec-mb", BackendSetting::IpsecMb),
        ("portable", BackendSetting::Portable),
    ] {
        let text = format!("[crypto]\nbackend = \"{name}\"");
        assert_eq!(Config::parse("x", &text).unwrap().crypto.backend, backend);
    }
}

#[test]
fn batch_paths_are_relative_to_config() {
    let directory = std::env::temp_dir().join(format!("uxfrm-config-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("config.toml");
    let devices = ["a.toml", "/b.toml", "niantic"]
        .map(|profile| format!("[[device]]\nname = 'nic0'\nprofile = '{profile}'\n"));
    std::fs::write(&path, format!("xfrm.batch = ['a.batch', '/b.batch']\n{}", devices.concat()))
        .unwrap();
    let config = Config::load(&path).unwrap();
    std::fs::write(&path, b"[host]\nmtu = \xff").unwrap();
    let no_text = Config::load(&path).unwrap_err().to_string();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(config.xfrm.batch, [directory.join("a.batch"), PathBuf::from("/b.batch")]);
    let profiles: Vec<_> = config.device.iter().map(|device| device.profile.as_str()).collect();
    let beside = directory.join("a.toml");
    assert_eq!(profiles, [beside.to_str().unwrap(), "/b.toml", "niantic"]);
    assert!(
        no_text.ends_with("config.toml:2:7: a byte that is no UTF-8, which TOML is written in")
    );
    let missing = Config::load(&path).unwrap_err().to_string();
    assert!(missing.starts_with(&path.display().to_string()), "{missing}");
}
