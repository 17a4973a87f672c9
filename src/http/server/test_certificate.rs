//! Certificates for the tests' TLS servers and clients, made anew in each run so that no private
//! key is kept. DER is written by hand: X.509 v3, ECDSA P-256 with SHA-256, RFC 5280 section 4.1.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;

const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// A certificate, and its key.
pub(super) type Made = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// A self-signed certificate for `host`, valid until 2049.
pub(super) fn make(host: &str) -> Made {
    issue(host, b"491231235959Z", None)
}

/// A certificate for `host`, valid from 2025 to `until` (UTCTime), signed by the named key or by its own.
pub(super) fn issue(host: &str, until: &[u8], issuer: Option<(&str, &PrivateKeyDer<'_>)>) -> Made {
    sign(host, until, issuer, true)
}

/// The same of X.509 version 1, which has no extensions.
pub(super) fn issue_v1(host: &str, until: &[u8], issuer: Option<(&str, &PrivateKeyDer<'_>)>) -> Made {
    sign(host, until, issuer, false)
}

fn sign(host: &str, until: &[u8], issuer: Option<(&str, &PrivateKeyDer<'_>)>, extended: bool) -> Made {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.as_ref(), &random).unwrap();
    let algorithm = der(SEQUENCE, &[&der(OBJECT, &[ECDSA_WITH_SHA256])]);
    let name = |host: &str| {
        let name = der(SEQUENCE, &[&der(OBJECT, &[COMMON_NAME]), &der(UTF8, &[host.as_bytes()])]);
        der(SEQUENCE, &[&der(SET, &[&name])])
    };
    let validity = der(SEQUENCE, &[&der(UTC_TIME, &[b"250101000000Z"]), &der(UTC_TIME, &[until])]);
    let key_kind = der(SEQUENCE, &[&der(OBJECT, &[EC_PUBLIC_KEY]), &der(OBJECT, &[P256])]);
    let public_key = der(SEQUENCE, &[&key_kind, &der(BIT_STRING, &[&[0], pair.public_key().as_ref()])]);
    let alt_names = der(SEQUENCE, &[&der(0x82, &[host.as_bytes()])]);
    let extension = der(SEQUENCE, &[&der(OBJECT, &[SUBJECT_ALT_NAME]), &der(OCTET_STRING, &[&alt_names])]);
    let (mut version, mut extensions) = (Vec::new(), Vec::new());
    if extended {
        extensions = der(0xa3, &[&der(SEQUENCE, &[&extension])]);
        version = der(0xa0, &[&der(INTEGER, &[&[2]])]);
    }
    let serial = der(INTEGER, &[&[1]]);
    let (subject, issuer_name) = (name(host), name(issuer.map_or(host, |(issuer, _)| issuer)));
    let body = der(
        SEQUENCE,
        &[&version, &serial, &algorithm, &issuer_name, &validity, &subject, &public_key, &extensions],
    );
    let signer = issuer.map_or(key.as_ref(), |(_, key)| key.secret_der());
    let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, signer, &random).unwrap();
    let signature = signer.sign(&random, &body).unwrap();
    let signature = der(BIT_STRING, &[&[0], signature.as_ref()]);
    let certificate = der(SEQUENCE, &[&body, &algorithm, &signature]);
    let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
    (CertificateDer::from(certificate), PrivateKeyDer::Pkcs8(key))
}

/// A file of PEM with one section.
pub(super) fn pem(section: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {section}-----\n{}\n-----END {section}-----\n", lines.join("\n"))
}

/// One DER value: tag, length, contents.
fn der(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let contents = contents.concat();
    let mut value = vec![tag];
    match contents.len() {
        length @ 0..0x80 => value.push(length as u8),
        length @ 0x80..0x100 => value.extend([0x81, length as u8]),
        length => value.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    value.extend(contents);
    value
}
