//! Published vectors, byte for byte, on every backend: sealed in place, sealed out of place,
//! opened.

use super::*;

/// One packet: `plain` (SPI, sequence number, IV, text) becomes `sealed` behind IV.
fn check(
    transform: &Transform,
    enc: &[u8],
    auth: &[u8],
    seq_high: SeqHigh,
    lead: &[u8],
    text: &[u8],
    sealed: &[u8],
) {
    let mut crypter = Crypter::new().unwrap();
    let expected = [lead, sealed].concat();
    for backend in backends() {
        let key = SaKey::new(transform, &KeyMaterial::new(enc), &KeyMaterial::new(auth), backend)
            .unwrap();
        let what = format!("{} {backend:?}", transform.name());

        let mut esp = [lead, text, &vec![0; transform.icv_len()]].concat();
        assert_eq!(
            seal_one(&mut crypter, &key, seq_high, Iv::InPacket, &mut esp),
            SealStatus::Sealed
        );
        assert_eq!(esp, expected, "{what}: in place");

        let mut esp = [lead, &vec![0; sealed.len()]].concat();
        let mut jobs = [SealJob::out_of_place(&key, seq_high, Iv::InPacket, &mut esp, text)];
        crypter.seal(&mut jobs);
        assert_eq!(jobs[0].status, SealStatus::Sealed);
        assert_eq!(esp, expected, "{what}: out of place");

        assert_eq!(
            open_one(&mut crypter, &key, seq_high, &mut esp),
            OpenStatus::Authentic,
            "{what}"
        );
        assert_eq!(text_of(transform, &esp), text, "{what}: opened");
    }
}

/// Key, IV, plaintext, ciphertext of RFC 3602 §4, cases 1 to 4: behind any SPI and sequence number.
#[test]
fn rfc3602_blocks() {
    let transform = pair(Some(("cbc(aes)", 128)), None);
    for (key, iv, plain, sealed) in [
        (
            "06a9214036b8a15b512e03d534120006",
            "3dafba429d9eb430b422da802c9fac41",
            b"Single block msg".to_vec(),
            "e353779c1079aeb82708942dbe77181a",
        ),
        (
            "c286696d887c9aa0611bbb3e2025a45a",
            "562e17996d093d28ddb3ba695a2e6f58",
            (0..32).collect(),
            "d296cd94c2cccf8a3a863028b5e1dc0a7586602d253cfff91b8266bea6d61ab1",
        ),
        (
            "6c3ea0477630ce21a2ce334aa746c2cd",
            "c782dc4c098c66cbd9cd27d825682c81",
            b"This is a 48-byte message (exactly 3 AES blocks)".to_vec(),
            "d0a02b3836451753d493665d33f0e8862dea54cdb293abc7506939276772f8d5\
             021c19216bad525c8579695d83ba2684",
        ),
        (
            "56e47a38c5598974bc46903dba290349",
            "8ce82eefbea0da3c44699ed7db51b7d9",
            (0xa0..0xe0).collect(),
            "c30e32ffedc0774e6aff6af0869f71aa0f3af07a9a31a9c684db207eb0ef8e4e\
             35907aa632c3ffdf868bb7b29d3d46ad83ce9f9a102ee99d49a53e87f4c3da55",
        ),
    ] {
        let lead = [hex("0000000100000001"), hex(iv)].concat();
        check(&transform, &hex(key), &[], SeqHigh::None, &lead, &plain, &hex(sealed));
    }
}

/// RFC 3602 §4, cases 5 to 8: transport- and tunnel-mode ESP packets without authentication. Text
/// is the payload, padding 1, 2, 3 …, pad length and next header.
#[test]
fn rfc3602_packets() {
    let transform = pair(Some(("cbc(aes)", 128)), None);
    for (key, lead, payload, next_header, sealed) in [
        (
            "90d382b410eeba7ad938c46cec1a82bf",
            "0000432100000001e96e8c08ab465763fd098d45dd3ff893",
            "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\
             202122232425262728292a2b2c2d2e2f3031323334353637",
            1,
            "f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856a4699e523a55db08\
             0b59ec3a8e4b7e52775b07d1db34ed9c538ab50c551b874aa269add047ad2d5913ac19b7cfbad4a6",
        ),
        (
            "90d382b410eeba7ad938c46cec1a82bf",
            "000043210000000869d08df7d203329db093fc4924e5bd80",
            "0800b5e8a80a0500a69c083d0b660e00777777777777777777777777",
            1,
            "f51995881ec4e0c4488987ce742e8109689bb379d2d750c0d915dca346a89f75",
        ),
        (
            "0123456789abcdef0123456789abcdef",
            "0000876500000002f4e765244f6407adf13dc1380f673f37",
            "45000054090400004001f988c0a87b03c0a87bc808009f76a90a0100b49c083d02a2040008090a0b\
             0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f30313233\
             34353637",
            4,
            "773b5241a4c449225e4f3ce5ed611b0c237ca96cf74a93013c1b0ea1a0cf70f8e4ecaec78ac53aad\
             7a0f022b859243c647752e94a859352b8a4d4d2decd136e5c177f132ad3fbfb2201ac9904c74ee0a\
             109e0ca1e4dfe9d5a100b842f1c22f0d",
        ),
        (
            "0123456789abcdef0123456789abcdef",
            "000087650000000585d47224b5f3dd5d2101d4ea8dffab22",
            "45000044090c00004001f990c0a87b03c0a87bc80800d63caa0a0200c69c083da3de0300ffffffff\
             ffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
            4,
            "15b92683819596a8047232cc00f7048fe45318e11f8a0f62ede3c3fc61203bb50f980a08c9843fd3\
             a1b06d5c07ff9639b7eb7dfb3512e5de435e7207ed971ef3d2726d9b5ef6affc6d17a0decbb13892",
        ),
    ] {
        let mut text = hex(payload);
        let padding = (text.len() + 2).next_multiple_of(16) - text.len() - 2;
        text.extend((1..=padding).map(|i| i as u8));
        text.extend([padding as u8, next_header]);
        check(&transform, &hex(key), &[], SeqHigh::None, &hex(lead), &text, &hex(sealed));
    }
}

/// RFC 3686 §6, vectors 1 to 9: key and nonce, IV, plaintext, ciphertext.
#[test]
fn rfc3686() {
    let counted = |len: u8| (0..len).collect::<Vec<u8>>();
    for (key, iv, plain, sealed) in [
        (
            "ae6852f8121067cc4bf7a5765577f39e00000030",
            "0000000000000000",
            b"Single block msg".to_vec(),
            "e4095d4fb7a7b3792d6175a3261311b8",
        ),
        (
            "7e24067817fae0d743d6ce1f32539163006cb6db",
            "c0543b59da48d90b",
            counted(32),
            "5104a106168a72d9790d41ee8edad388eb2e1efc46da57c8fce630df9141be28",
        ),
        (
            "7691be035e5020a8ac6e618529f9a0dc00e0017b",
            "27777f3f4a1786f0",
            counted(36),
            "c1cf48a89f2ffdd9cf4652e9efdb72d74540a42bde6d7836d59a5ceaaef3105325b2072f",
        ),
        (
            "16af5b145fc9f579c175f93e3bfb0eed863d06ccfdb7851500000048",
            "36733c147d6d93cb",
            b"Single block msg".to_vec(),
            "4b55384fe259c9c84e7935a003cbe928",
        ),
        (
            "7c5cb2401b3dc33c19e7340819e0f69c678c3db8e6f6a91a0096b03b",
            "020c6eadc2cb500d",
            counted(32),
            "453243fc609b23327edfaafa7131cd9f8490701c5ad4a79cfc1fe0ff42f4fb00",
        ),
        (
            "02bf391ee8ecb159b959617b0965279bf59b60a786d3e0fe0007bdfd",
            "5cbd60278dcc0912",
            counted(36),
            "96893fc55e5c722f540b7dd1ddf7e758d288bc95c69165884536c811662f2188abee0935",
        ),
        (
            "776beff2851db06f4c8a0542c8696f6c6a81af1eec96b4d37fc1d689e6c1c10400000060",
            "db5672c97aa8f0b2",
            b"Single block msg".to_vec(),
            "145ad01dbf824ec7560863dc71e3e0c0",
        ),
        (
            "f6d66d6bd52d59bb0796365879eff886c66dd51a5b6a99744b50590c87a2388400faac24",
            "c1585ef15a43d875",
            counted(32),
            "f05e231b3894612c49ee000b804eb2a9b8306b508f839d6a5530831d9344af1c",
        ),
        (
            "ff7a617ce69148e4f1726e2f43581de2aa62d9f805532edff1eed687fb54153d001cc5b7",
            "51a51d70a1c11148",
            counted(36),
            "eb6c52821d0bbbf7ce7594462aca4faab407df866569fd07f48cc0b583d6071f1ec0e6b8",
        ),
    ] {
        let key = hex(key);
        let transform = pair(Some(("rfc3686(ctr(aes))", key.len() * 8)), None);
        let lead = [hex("0000000100000001"), hex(iv)].concat();
        check(&transform, &key, &[], SeqHigh::None, &lead, &plain, &hex(sealed));
    }
}

/// An AEAD vector: key with salt, IV, associated data (SPI, perhaps the high half, sequence
/// number), text, result.
fn check_aead(transform: &Transform, key: &str, iv: &str, aad: &str, text: &str, sealed: &str) {
    let aad = hex(aad);
    let seq_high = match aad.len() {
        12 => SeqHigh::Esn(u32::from_be_bytes(aad[4..8].try_into().unwrap())),
        _ => SeqHigh::None,
    };
    let lead = [&aad[..4], &aad[aad.len() - 4..], &hex(iv)].concat();
    check(transform, &hex(key), &[], seq_high, &lead, &hex(text), &hex(sealed));
}

/// draft-mcgrew-gcm-test-01 §4: its AES-GCM packets, with and without ESN. Key and salt, IV, AAD,
/// text, ciphertext and ICV.
#[test]
fn mcgrew_gcm() {
    for (key, iv, aad, text, sealed) in MCGREW {
        let transform = aead("rfc4106(gcm(aes))", key.len() * 4, 128);
        check_aead(&transform, key, iv, aad, text, sealed);
    }
}

type AeadVector = (&'static str, &'static str, &'static str, &'static str, &'static str);

const MCGREW: [AeadVector; 14] = [
    (
        "4c80cdefbb5d10da906ac73c3613a6342e443b68",
        "4956ed7e3b244cfe",
        "000043218765432100000000",
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f7564700373\
         69700963796265726369747902646b000021000101020201",
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d\
         15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    ),
    (
        "feffe9928665731c6d6a8f9467308308cafebabe",
        "facedbaddecaf888",
        "0000a5f80000000a",
        "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d0010000010000000000000373697009637962\
         65726369747902646b00000100010001",
        "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c3de81827c10e9a4f51330d0eec416642\
         cfbb85a5b47e48a4ec3b9ba95d918bd183b70d3aa8bc6ee4c309e9d85a41ad4a",
    ),
    (
        "abbccddef00112233445566778899aababbccddef00112233445566778899aab11223344",
        "0102030405060708",
        "4a2cbfe300000002",
        "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b401010402\
         01020201",
        "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99d\
         ef842d8eb335f4eecfdbf831824b4c4915956c96",
    ),
    (
        "0000000000000000000000000000000000000000",
        "0000000000000000",
        "0000000000000001",
        "4500003c99c500008001cb7a40679318010101010800075c020044006162636465666768696a6b6c6d6e6f7071727374\
         75767761626364656667686901020201",
        "4688daf2f973a392732909c331d56d60f694abaa414b5e7ff5fdcdfff5e9a284456476492719ffb64de7d9dca1e1d894\
         bc3bd57873ed4d181d19d4d5c8c18af3f821d496eeb096e98ad2b69e4799c71d",
    ),
    (
        "3de09874b388e6491988d0c3607eae1f57690e43",
        "4e280000a2fca1a3",
        "42f67e3f1010101010101010",
        "4500003c99c300008001cb7c40679318010101010800085c020043006162636465666768696a6b6c6d6e6f7071727374\
         75767761626364656667686901020201",
        "fba2caa4853cf9f0f22cb10d86dd83b0fec75691cf1a04b00d1138ec9c35791765acbd8701ad79845bf9fe3fba487bc9\
         1755e6662b4c8d0d1f5e22739530320ae0d731cc978ecafaeae88f00e80d6e48",
    ),
    (
        "3de09874b388e6491988d0c3607eae1f57690e43",
        "4e280000a2fca1a3",
        "42f67e3f1010101010101010",
        "4500001c42a200008001441f406793b6e00000020a00f5ff01020201",
        "fba2ca845e5df9f0f22c3e6e86dd831e1fc65792cd1af9130e1379ed369f071f35e034be95f112e4e7d05d35",
    ),
    (
        "feffe9928665731c6d6a8f9467308308feffe9928665731ccafebabe",
        "facedbaddecaf888",
        "0000a5f80000000a",
        "45000028a4ad4000400678800a01038f0a010612802306b8cb712602dd6bb03e501016d075680001",
        "a5b1f8066029aea40e598b8122de02420938b3ab33f828e687b8858b5bfbdbd0315b27452144cc7795457b9652037f53\
         18027b5b4cd7a636",
    ),
    (
        "abbccddef00112233445566778899aabdecaf888",
        "cafedebaceface74",
        "000001000000000000000001",
        "4500004933ba00007f119106c3fb1d10c2b1d326c02831ce0035dd7b800302d500004e20001e8c18d75b81dc91baa047\
         6b91b924b280389d92c963bac046ec959b6266c04722b14923010101",
        "18a6fd42f72cbf4ab2a2ea901f73d814e3e7f243d95412e1c349c1d2fbec168f9190feebaf2cb01984e65863965d7472\
         b79da345e0e780191f0d2f0e0f496c226f2127b27db35724e7845d68651f57e65f354f75ff17015769623436",
    ),
    (
        "abbccddef00112233445566778899aababbccddef00112233445566778899aab73616c74",
        "616e640169766563",
        "17405e67156f3126dd0db99b",
        "45080028732c00004006e9f90a0106120a01038f06b88023dd6bafbecb71260250101f646d540001",
        "f2d69ecdbd5a0d5b8d5ef38bad4da58d1f278fde98ef67549d524a3018d9a57ff4d3a31ce673119e451626c2415771e3\
         b7eebca614c89b35",
    ),
    (
        "3de09874b388e6491988d0c3607eae1f57690e43",
        "4e280000a2fca1a3",
        "42f67e3f1010101010101010",
        "45000049333e00007f119182c3fb1d10c2b1d326c02831ce0035cb458003025b000001e0001e8c18d65759d52284a035\
         2c71475c8880391c764d6e5ee0496b325ae270c03899493915010101",
        "fba2cad12fc1f9f00d3cebf305410db83d7784b607323d220f24b0a97d54182800cadb0f68d99ef0e0c0c89ae9bea888\
         4e52d65bc1afd0740f742444747b5b39ab533163aad4550ee5160975cdb608c5769189609763b8e18caa81e2",
    ),
    (
        "abbccddef00112233445566778899aababbccddef00112233445566778899aab73616c74",
        "616e640169766563",
        "17405e67156f3126dd0db99b",
        "636973636f0172756c657301746865016e6574776501646566696e6501746865746563686e6f6c6f6769657301746861\
         7477696c6c01646566696e65746f6d6f72726f7701020201",
        "d4b7ed86a1777f2ea13d6973d324c69e7b43f826fb56831226508bebd2dceb18d0a6df10e5487df074113e14c641024e\
         3e6773d91a62ee429b043a10e3efe6b012a49363412364f8c0cac587f249e56b11e24f30e44ccc76",
    ),
    (
        "7d773d00c144c525ac619d18c84a3f47d9664267",
        "43457e9182443bc6",
        "335467aeffffffff",
        "01020201",
        "437f866bcb3f699fe9b0822bac961c4504bef270",
    ),
    (
        "abbccddef00112233445566778899aabdecaf888",
        "cafedebaceface74",
        "000001000000000000000001",
        "746f016265016f72016e6f7401746f0162650001",
        "29c9fc69a197d038ccdd14e2ddfcaa0543332164412503524303ed3c6c5f283843af8c3e",
    ),
    (
        "6c6567616c697a656d6172696a75616e61616e64646f69746265666f726569617475726e",
        "333021696765746d",
        "796b6963ffffffffffffffff",
        "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f7071727374\
         01020201",
        "f97ab2aa356d8edce17644ac8c78e25dd24dedbb29ebf1b64a274b39b49c3a864cd3d78ca4ae68a32b42458fb57dbe82\
         1dcc63b9d0937ba2945f669368661a329fb4c053",
    ),
];

/// draft-mcgrew-gcm-test-01: its AES-GMAC packet. What is authenticated goes as it is, then the
/// ICV.
#[test]
fn mcgrew_gmac() {
    let text = "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f7071727374\
                01020201";
    let sealed = format!("{text}f2a9a836e155106aa8dcd618e4099aaa");
    check_aead(
        &aead("rfc4543(gcm(aes))", 160, 128),
        "4c80cdefbb5d10da906ac73c3613a63422433c64",
        "0000000000000000",
        "0000432100000007",
        text,
        &sealed,
    );
}

/// RFC 7634, appendix A.
#[test]
fn rfc7634() {
    check_aead(
        &aead("rfc7539esp(chacha20,poly1305)", 288, 128),
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3",
        "1011121314151617",
        "0102030400000005",
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f\
         101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363701020204",
        "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95df\
         ab4c02f72aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0\
         76aaa8266b7fb0f7b11b369907e1ad43",
    );
}

/// RFC 3610's own packets have nonces of 13 bytes; RFC 4309 §4 makes them of 11 (3 of salt, 8 of
/// IV), so none can be an ESP packet, and they are tested on the cipher itself
/// (`portable/ccm/tests.rs`). RFC 4309 has no vectors: these are of its shape, made with OpenSSL 3.
#[test]
fn rfc4309_by_openssl() {
    for (size, icv_bits, aad, icv) in [
        (128, 128, "0102030400000005", "6c550de792b8a39dfd83eb87f62c8efd"),
        (128, 128, "010203040000000000000005", "9c4da4a1a45016849ae10ff72805e6e2"),
        (128, 64, "0102030400000005", "1a9a56e6f390e51d"),
        (128, 64, "010203040000000000000005", "0c7b16b35eac547c"),
        (192, 96, "0102030400000005", "b7f856dd0aeeb40af11f76fd"),
        (192, 96, "010203040000000000000005", "1ec7e19118d680bfacebec73"),
        (256, 128, "0102030400000005", "c64526a2e665d15353c0a8edd63ad6c6"),
        (256, 128, "010203040000000000000005", "f8da167e1753283a4f181851e15d737d"),
    ] {
        let text = match size {
            128 => "83fdec0be8129f9b363f57fdc2d47a8e1532a400c8d045a9",
            192 => "9cfa8f20244ee192572420f8d66985ee43654f2f14dd310b",
            _ => "7756d150a9ceb29be43a431d2d5175cc6723904af9884509",
        };
        let key: String = (0x40..0x40 + size / 8).map(|byte| format!("{byte:02x}")).collect();
        check_aead(
            &aead("rfc4309(ccm(aes))", size + 24, icv_bits),
            &format!("{key}a0a1a2"),
            "1011121314151617",
            aad,
            "45000054a6f200004001e778c6336405c000020501020204",
            &format!("{text}{icv}"),
        );
    }
}

/// An ESP packet under the null cipher is authenticated as it is: any message of ten bytes and more
/// is one.
fn check_mac(name: &str, key: &[u8], message: &[u8], icv: &str) {
    let icv = hex(icv);
    let transform = pair(None, Some((name, key.len() * 8, Some(icv.len() as u32 * 8))));
    let (lead, text) = message.split_at(8);
    check(&transform, &[], key, SeqHigh::None, lead, text, &[text, &icv].concat());
}

/// RFC 2202 and RFC 4231, cases 2, 3, 4, 6 and 7: each digest in full, and cut to the ICV lengths
/// that ESP has for it (RFC 2404, RFC 4868, and the kernel's 96 bits of SHA-256). Case 1 is too
/// short for ESP and is tested where the MAC is.
#[test]
fn rfc4231() {
    let long =
        b"This is a test using a larger than block-size key and a larger than block-size data. \
                 The key needs to be hashed before being used by the HMAC algorithm.";
    let cases: [(&[u8], &[u8], [&str; 4]); 5] = [
        (
            b"Jefe",
            b"what do ya want for nothing?",
            [
                "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
                "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
                "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554\
             9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
            ],
        ),
        (
            &[0xaa; 20],
            &[0xdd; 50],
            [
                "125d7342b9ac11cd91a39af48aa17b4f63f175d3",
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
                "88062608d3e6ad8a0aa2ace014c8a86f0aa635d947ac9febe83ef4e55966144b2a5ab39dc13814b94e3ab6e101a34f27",
                "fa73b0089d56a284efb0f0756c890be9b1b5dbdd8ee81a3655f83e33b2279d39\
             bf3e848279a722c806b485a47e67c807b946a337bee8942674278859e13292fb",
            ],
        ),
        (
            &core::array::from_fn::<u8, 25, _>(|i| i as u8 + 1),
            &[0xcd; 50],
            [
                "4c9007f4026250c6bc8414f9bf50c86c2d7235da",
                "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
                "3e8a69b7783c25851933ab6290af6ca77a9981480850009cc5577c6e1f573b4e6801dd23c4a7d679ccf8a386c674cffb",
                "b0ba465637458c6990e5a8c5f61d4af7e576d97ff94b872de76f8050361ee3db\
             a91ca5c11aa25eb4d679275cc5788063a5f19741120c4f2de2adebeb10a298dd",
            ],
        ),
        (
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            [
                "90d0dace1c1bdc957339307803160335bde6df2b",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
                "4ece084485813e9088d2c63a041bc5b44f9ef1012a2b588f3cd11f05033ac4c60c2ef6ab4030fe8296248df163f44952",
                "80b24263c7c1a3ebb71493c1dd7be8b49b46d1f41b4aeec1121b013783f8f352\
             6b56d037e05f2598bd0fd2215d6a1e5295e64f73f63f0aec8b915a985d786598",
            ],
        ),
        (
            &[0xaa; 131],
            long,
            [
                "217e44bb08b6e06a2d6c30f3cb9f537f97c63356",
                "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
                "6617178e941f020d351e2f254e8fd32c602420feb0b8fb9adccebb82461e99c5a678cc31e799176d3860e6110c46523e",
                "e37b6a775dc87dbaa4dfa9f96e5e3ffddebd71f8867289865df5a32d20cdc944\
             b6022cac3c4982b10d5eeb55c3e4de15134676fb6de0446065c97440fa8c6a58",
            ],
        ),
    ];
    for (key, message, icvs) in cases {
        let cuts: [(&str, &[usize]); 4] = [
            ("hmac(sha1)", &[160, 96]),
            ("hmac(sha256)", &[256, 128, 96]),
            ("hmac(sha384)", &[384, 192]),
            ("hmac(sha512)", &[512, 256]),
        ];
        for ((name, lengths), icv) in cuts.iter().zip(icvs) {
            for bits in *lengths {
                check_mac(name, key, message, &icv[..bits / 4]);
            }
        }
    }
    check_mac(
        "hmac(md5)",
        b"Jefe",
        b"what do ya want for nothing?",
        "750c783e6ab0b503eaa86e310a5db738",
    );
}

/// RFC 4231, case 5: cut to 128 bits.
#[test]
fn rfc4231_truncated() {
    for (name, icv) in [
        ("hmac(sha256)", "a3b6167473100ee06e0c796c2955552b"),
        ("hmac(sha384)", "3abf34c3503b2a23a46efc619baef897"),
        ("hmac(sha512)", "415fad6271580a531d4179bc891d87a6"),
    ] {
        check_mac(name, &[0x0c; 20], b"Test With Truncation", icv);
    }
}

/// RFC 4868 §2.7.2: keys as long as the digest, ICVs half as long.
#[test]
fn rfc4868() {
    let message = b"what do ya want for nothing?";
    for (name, times, icv) in [
        ("hmac(sha256)", 8, "167f928588c5cc2eef8e3093caa0e87c"),
        ("hmac(sha384)", 12, "2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d"),
        ("hmac(sha512)", 16, "cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454"),
    ] {
        check_mac(name, &b"Jefe".repeat(times), message, icv);
    }
}

/// RFC 3566 §4.6, cases 3 to 7, in full and at 96 bits; the shorter two are tested where the MAC
/// is.
#[test]
fn rfc3566() {
    let key = hex("000102030405060708090a0b0c0d0e0f");
    for (message, mac) in [
        ((0..16).collect::<Vec<u8>>(), "d2a246fa349b68a79998a4394ff7a263"),
        ((0..20).collect(), "47f51b4564966215b8985c63055ed308"),
        ((0..32).collect(), "f54f0ec8d2b9f3d36807734bd5283fd4"),
        ((0..34).collect(), "becbb3bccdb518a30677d5481fb6b4d8"),
        (vec![0; 1000], "f0dafee895db30253761103b5d84528f"),
    ] {
        check_mac("xcbc(aes)", &key, &message, mac);
        check_mac("xcbc(aes)", &key, &message, &mac[..24]);
    }
}

/// RFC 4493 §4, examples 2 to 4 (RFC 4494 cuts them to 96 bits), and NIST SP 800-38B's with 192 and
/// 256 bits.
#[test]
fn rfc4493() {
    let message = hex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
         30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710");
    for (key, len, mac) in [
        ("2b7e151628aed2a6abf7158809cf4f3c", 16, "070a16b46b4d4144f79bdd9dd04a287c"),
        ("2b7e151628aed2a6abf7158809cf4f3c", 40, "dfa66747de9ae63030ca32611497c827"),
        ("2b7e151628aed2a6abf7158809cf4f3c", 64, "51f0bebf7e3b9d92fc49741779363cfe"),
        (
            "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
            64,
            "a1d5df0eed790f794d77589659f39a11",
        ),
        (
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            64,
            "e1992190549f6ed5696a2c056c315410",
        ),
    ] {
        check_mac("cmac(aes)", &hex(key), &message[..len], mac);
        check_mac("cmac(aes)", &hex(key), &message[..len], &mac[..24]);
    }
}
