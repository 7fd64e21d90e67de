use proptest::prelude::*;

use super::*;

const PATH: &str = "/uxfrm/1/example/pools/default";

fn key(byte: u8) -> FleetKey {
    FleetKey::new(Zeroizing::new([byte; 32]))
}

fn keyring(byte: u8) -> Keyring {
    Keyring::new(key(byte), [])
}

fn sealed() -> Vec<u8> {
    keyring(1).seal(PATH, Serial(7), b"secret", SealNonce([9; NONCE]))
}

#[test]
fn a_record_opens_under_its_path_alone() {
    let opened = keyring(1).open(PATH, &sealed()).unwrap();
    assert_eq!((opened.serial, &opened.text[..]), (Serial(7), &b"secret"[..]));
    let other = format!("{PATH}2");
    assert_eq!(keyring(1).open(&other, &sealed()), Err(OpenError::NotAuthentic));
}

#[test]
fn a_record_of_another_fleet_does_not_open() {
    assert_eq!(keyring(2).open(PATH, &sealed()), Err(OpenError::UnknownKey(key(1).id())));
}

#[test]
fn while_keys_change_both_open_and_the_new_one_seals() {
    let both = Keyring::new(key(2), [key(1)]);
    assert!(both.open(PATH, &sealed()).is_ok());
    let anew = both.seal(PATH, Serial(8), b"secret", SealNonce([3; NONCE]));
    assert!(keyring(2).open(PATH, &anew).is_ok());
    assert_eq!(keyring(1).open(PATH, &anew), Err(OpenError::UnknownKey(key(2).id())));
}

#[test]
fn every_changed_byte_is_seen() {
    let sealed = sealed();
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert!(keyring(1).open(PATH, &changed).is_err(), "byte {at}");
    }
}

#[test]
fn neither_key_nor_text_is_shown() {
    let opened = keyring(1).open(PATH, &sealed()).unwrap();
    let shown = format!("{:?} {opened:?} {:?}", keyring(1), SealNonce([9; NONCE]));
    assert!(!shown.contains("secret") && !shown.contains("1, 1") && !shown.contains("9, 9"));
    let sealed = sealed();
    assert!(!sealed.windows(6).any(|bytes| bytes == b"secret"));
}

proptest! {
    #[test]
    fn what_is_no_record_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        prop_assert!(keyring(1).open(PATH, &bytes).is_err());
    }

    #[test]
    fn cut_records_are_refused(length in 0_usize..60) {
        let sealed = sealed();
        prop_assume!(length < sealed.len());
        prop_assert!(keyring(1).open(PATH, &sealed[..length]).is_err());
    }
}
