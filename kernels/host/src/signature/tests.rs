use super::*;

const DIGEST: [u8; 32] = [0x5a; 32];

fn author() -> KeyPair {
    KeyPair::from_secret(&[7; 32])
}

/// What becomes of a copy with one bit of one byte changed, for each byte.
fn flipped<const BYTES: usize>(bytes: [u8; BYTES]) -> impl Iterator<Item = [u8; BYTES]> {
    (0..BYTES).map(move |index| {
        let mut changed = bytes;
        changed[index] ^= 1 << (index % 8);
        changed
    })
}

#[test]
fn a_signature_holds_for_its_kernel_and_key_and_for_nothing_else() {
    let signature = author().sign(&DIGEST);
    assert_eq!(signature.verify(&DIGEST), Ok(()));
    for digest in flipped(DIGEST) {
        assert!(signature.verify(&digest).is_err());
    }
    for bytes in flipped(signature.bytes) {
        assert!(Signature { bytes, ..signature }.verify(&DIGEST).is_err());
    }
    for key in flipped(signature.key.0) {
        assert!(Signature { key: PublicKey(key), ..signature }.verify(&DIGEST).is_err());
    }
    let other = KeyPair::from_secret(&[8; 32]).public();
    assert_eq!(Signature { key: other, ..signature }.verify(&DIGEST), Err(WrongSignature { key: other }));
}

#[test]
fn what_is_signed_is_the_digest_in_our_domain() {
    let bytes = author().0.sign(&DIGEST).to_bytes();
    assert!(Signature { key: author().public(), bytes }.verify(&DIGEST).is_err(), "the bare digest");
    let bytes = author().0.sign(&[b"omnilearn kernel 1\0".as_slice(), &DIGEST].concat()).to_bytes();
    assert_eq!(author().sign(&DIGEST).bytes, bytes);
}

#[test]
fn a_second_encoding_of_a_signature_is_refused() {
    // The order of the group, 2^252 + 27742317777372353535851937790883648493, little-endian: s + order is the same number
    // to a verifier that does not look.
    let order = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let signature = author().sign(&DIGEST);
    let mut bytes = signature.bytes;
    let mut carry = 0;
    for (byte, order) in bytes[32..].iter_mut().zip(order) {
        let sum = u16::from(*byte) + order + carry;
        (*byte, carry) = (sum as u8, sum >> 8);
    }
    assert!(Signature { bytes, ..signature }.verify(&DIGEST).is_err());
}

#[test]
fn a_key_for_which_anybody_can_sign_is_no_key() {
    // The neutral element: R = A = 1 and s = 0 solve the equation of every message.
    let mut neutral = [0; 32];
    neutral[0] = 1;
    let mut bytes = [0; 64];
    bytes[0] = 1;
    assert!(Signature { key: PublicKey(neutral), bytes }.verify(&DIGEST).is_err());
    assert_eq!(PublicKey(neutral).to_string().parse::<PublicKey>(), Err(TextError::NotPublic));
}

#[test]
fn texts_come_back_as_what_they_were() {
    let signature = author().sign(&DIGEST);
    assert_eq!(signature.to_string().parse(), Ok(signature));
    assert_eq!(signature.to_string().replace('\n', " \r\n\n").parse(), Ok(signature));
    let key = author().public();
    assert_eq!(format!(" {key}\n").parse(), Ok(key));
    assert_eq!(key.to_string().to_uppercase().parse(), Ok(key));
    assert!(key.to_string().starts_with(&key.short()) && key.short().len() == 8);
    let again = KeyPair::parse_secret(&author().secret_text()).unwrap();
    assert_eq!(again.sign(&DIGEST), signature);
    let sent = KernelSignature::from(&signature);
    assert_eq!(Signature::from(&sent), signature);
}

#[test]
fn malformed_texts_say_what_is_wrong_without_quoting_it() {
    let key = author().public().to_string();
    for (text, expected) in [
        (String::new(), TextError::Length { expected: 64, found: 0 }),
        (key[1..].to_owned(), TextError::Length { expected: 64, found: 63 }),
        (format!("{key}00"), TextError::Length { expected: 64, found: 66 }),
        (key.replacen(&key[9..10], "g", 1), TextError::Digit { position: key.find(&key[9..10]).unwrap() + 1 }),
        ("ä".repeat(64), TextError::Digit { position: 1 }),
        ("02".to_owned() + &"00".repeat(31), TextError::NotPublic),
        (author().secret_text(), TextError::Secret),
    ] {
        assert_eq!(text.parse::<PublicKey>(), Err(expected), "{text}");
    }
    let signature = author().sign(&DIGEST).to_string();
    let (first, last) = signature.split_once('\n').unwrap();
    for text in ["", first, last, &format!("{last}{first}"), &format!("{signature}{signature}"), &key] {
        assert_eq!(text.parse::<Signature>(), Err(TextError::NotSignature), "{text}");
    }
    let short = TextError::Length { expected: 128, found: 126 };
    assert_eq!(signature.trim_end()[..signature.len() - 3].parse::<Signature>(), Err(short));
    for text in ["", &key, &signature, &author().secret_text()[1..]] {
        assert_eq!(KeyPair::parse_secret(text).unwrap_err(), TextError::NotSecret);
    }
    let error = KeyPair::parse_secret(&author().secret_text().replace("07", "0x")).unwrap_err();
    assert!(!error.to_string().contains("0707"), "{error}");
}

#[test]
fn a_new_key_is_one_of_its_own_and_does_not_show_its_secret() {
    let (first, second) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    assert_ne!(first.public(), second.public());
    let secret = to_hex(first.0.as_bytes());
    assert!(!format!("{first:?}").contains(&secret[..8]), "{first:?}");
}
