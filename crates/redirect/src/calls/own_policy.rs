//! Policies of a socket (`net/xfrm/xfrm_state.c: xfrm_user_policy`). An IKE daemon's bypass policy
//! is replaced by a mark. A policy that protects is refused: with a mark its traffic would leave in
//! plain.

/// What a policy of a socket's own comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnPolicy {
    /// What leaves by the socket passes the gateway by.
    LetOut,
    /// What comes to the socket passes: nothing is to be done for that here.
    LetIn,
    /// It is to be protected, or blocked.
    More,
    /// The kernel would not take it.
    Malformed,
}

/// `XFRM_POLICY_OUT`
const OUT: u8 = 1;
/// `XFRM_POLICY_ALLOW`
const ALLOW: u8 = 0;
/// Sizes of `struct xfrm_userpolicy_info` and `struct xfrm_user_tmpl`; offsets of direction and
/// action.
const POLICY: usize = 168;
const TEMPLATE: usize = 64;
const DIRECTION_AT: usize = 160;

/// Bytes of `struct sadb_x_policy`.
const KEY_POLICY: usize = 16;
/// `IPSEC_DIR_OUTBOUND`, `IPSEC_POLICY_*` that neither block nor protect.
const KEY_OUT: u8 = 2;
const KEY_LETS_PASS: [u16; 3] = [1, 3, 4];
const KEY_MOST: u16 = 4;

impl OwnPolicy {
    /// Of the value of `IP_XFRM_POLICY`.
    pub(super) fn of_xfrm(value: &[u8]) -> Self {
        let Some((policy, templates)) = value.split_first_chunk::<POLICY>() else {
            return Self::Malformed;
        };
        let lets_pass = policy[DIRECTION_AT + 1] == ALLOW && templates.len() < TEMPLATE;
        match policy[DIRECTION_AT] {
            direction if direction > OUT => Self::Malformed,
            _ if !lets_pass => Self::More,
            OUT => Self::LetOut,
            _ => Self::LetIn,
        }
    }

    /// Of the value of `IP_IPSEC_POLICY` (`net/key/af_key.c: pfkey_compile_policy`).
    pub(super) fn of_key(value: &[u8]) -> Self {
        let Some(policy) = value.first_chunk::<KEY_POLICY>() else { return Self::Malformed };
        let [.., low, high, direction, _, _, _, _, _, _, _, _, _] = *policy;
        let kind = u16::from_ne_bytes([low, high]);
        match direction {
            direction if kind > KEY_MOST || direction == 0 || direction > KEY_OUT => {
                Self::Malformed
            }
            _ if !KEY_LETS_PASS.contains(&kind) => Self::More,
            KEY_OUT => Self::LetOut,
            _ => Self::LetIn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xfrm(direction: u8, action: u8, templates: usize) -> OwnPolicy {
        let mut value = vec![0; POLICY + templates * TEMPLATE];
        value[DIRECTION_AT..DIRECTION_AT + 2].copy_from_slice(&[direction, action]);
        OwnPolicy::of_xfrm(&value)
    }

    fn key(kind: u16, direction: u8) -> OwnPolicy {
        let mut value = [0; KEY_POLICY];
        value[4..6].copy_from_slice(&kind.to_ne_bytes());
        value[6] = direction;
        OwnPolicy::of_key(&value)
    }

    #[test]
    fn own_policy_bypass_is_recognized() {
        assert_eq!((xfrm(1, 0, 0), xfrm(0, 0, 0)), (OwnPolicy::LetOut, OwnPolicy::LetIn));
        for (direction, action, templates) in [(1, 1, 0), (1, 0, 1), (0, 0, 2), (0, 1, 0)] {
            assert_eq!(xfrm(direction, action, templates), OwnPolicy::More);
        }
        assert_eq!((xfrm(2, 0, 0), OwnPolicy::of_xfrm(&[0; 167])), {
            (OwnPolicy::Malformed, OwnPolicy::Malformed)
        });
    }

    #[test]
    fn pf_key_bypass_is_recognized() {
        for kind in KEY_LETS_PASS {
            assert_eq!((key(kind, 2), key(kind, 1)), (OwnPolicy::LetOut, OwnPolicy::LetIn));
        }
        assert_eq!((key(0, 2), key(2, 2)), (OwnPolicy::More, OwnPolicy::More));
        for (kind, direction) in [(5, 2), (4, 0), (4, 3)] {
            assert_eq!(key(kind, direction), OwnPolicy::Malformed);
        }
        assert_eq!(OwnPolicy::of_key(&[0; 15]), OwnPolicy::Malformed);
    }
}
