// What to do about a tunnel, by the reason of its health (docs/status.md).

const NEXT = {
  "no-state": "Add the state (uxfrm xfrm state add) or start the IKE daemon. A state with another reqid is listed under States.",
  "acquire-pending": "The IKE daemon was asked and has not answered: see its log.",
  "waits-for-packet": null,
  expired: "Replace the state, or see why the IKE daemon has not rekeyed in time.",
  "numbers-used-up": "Replace the state, or use one with flag esn.",
  "wrong-direction": "The state has dir in, and the policy sends by it: add one for the other way.",
  "no-inbound-state": "Add the state of the other direction: nothing that comes in can be read.",
  "nothing-received": "Look at the other end: address, key, policy; whether ESP is filtered on the way; uxfrm why, uxfrm probe.",
  "received-dropped": "What comes in is opened and goes no further: add the policy in or fwd, or widen the selector; uxfrm why SRC DST dir in spi SPI, uxfrm drops.",
  "sent-dropped": "No state takes what its policy sends: see the selector of the state, or flag af-unspec; uxfrm why SRC DST.",
  "optional-without-state": "Without a state its packets leave unprotected (level use): add one, or make the template required.",
  quiet: null,
};

/** The next step, or null where nothing has to be done. */
export function nextStep(tunnel) {
  return (tunnel.reason && NEXT[tunnel.reason.kind]) ?? null;
}
