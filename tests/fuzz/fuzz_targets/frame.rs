//! Any bytes as a frame or a handshake: never a panic, and what is understood is encoded to something that is understood alike.

#![no_main]

use libfuzzer_sys::fuzz_target;
use omnilearn_wire::frame::{decode, encode};
use omnilearn_wire::handshake;
use omnilearn_wire::message::{AgentMessage, HubMessage};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode::<AgentMessage<'_>>(bytes) {
        let again = encode(&message).expect("what was decoded is within its limits");
        // Compared as bytes: a NaN is not equal to itself.
        assert_eq!(
            encode(&decode::<AgentMessage<'_>>(&again).expect("own encoding")).expect("the same message"),
            again
        );
    }
    if let Ok(message) = decode::<HubMessage<'_>>(bytes) {
        let again = encode(&message).expect("what was decoded is within its limits");
        assert_eq!(encode(&decode::<HubMessage<'_>>(&again).expect("own encoding")).expect("the same message"), again);
    }
    let _ = handshake::decode_hello(bytes);
    let _ = handshake::decode_answer(bytes);
});
