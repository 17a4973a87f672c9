//! Numbers in a request as people write them: digits with separators and suffixes, words of many languages, Chinese numerals.
//!
//! Only the size matters here: how often something may be repeated. A value that is read a little too large does no harm, and numbers
//! below ten decide nothing by themselves, so rare small ones are left out where they mean something else in another language.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::words::BYTES;

/// Largest number that is told from others.
const MOST: u64 = 10_000_000;

/// A piece of a text in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Letters of a script that parts words; one character of one that does not.
    Word(String),
    /// Digits.
    Digits(u64),
    /// A number, whatever it was written in.
    Number(u64),
    /// Anything else that is seen.
    Mark(char),
    /// Blanks, between pieces that have some between them.
    Gap,
    /// A line break or the end of a sentence.
    End,
}

impl Piece {
    /// The number that it is.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(value) => Some(*value),
            _ => None,
        }
    }

    /// The word that it is.
    pub(super) fn word(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// Words that stand for a value by themselves.
const VALUES: &[(u64, &str)] = &[
    (1, "jedna jedno yksi egy one ein eins eine einen un une uno una een один одна ett jeden satu واحد एक"),
    (
        2,
        "dva dvě kaksi két kettő două doi doua dwóch dwie двух двоє δύο δυο hai שתי שתיים دو two twice zwei deux dos dois duas due twee два две två dwa iki dua दो",
    ),
    (
        3,
        "tři kolme három trei trzech трёх трех τρεις τρία ba שלוש سه three thrice drei trois tres três drie три trzy üç tiga ثلاث तीन",
    ),
    (
        4,
        "চার நான்கு چار čtyři neljä négy patru czterech четырёх четырех чотири τέσσερα τέσσερις bốn ארבע چهار four vier quatre cuatro quatro quattro четыре fyra cztery dört empat أربع चार",
    ),
    (
        5,
        "পাঁচ ஐந்து پانچ tano pět viisi öt cinci pięciu пяти πέντε חמש پنج five fünf fuenf cinq cinco cinque vijf пять п'ять pięć beş lima خمس पांच पाँच",
    ),
    (6, "šest kuusi șase sześciu шести έξι sáu שש شش six sechs seis sei zes шесть sześć altı enam ست छह"),
    (
        7,
        "sedm seitsemän hét șapte siedmiu семи επτά εφτά bảy שבע هفت seven sieben siete sete sette zeven семь sju siedem yedi tujuh سبع सात",
    ),
    (
        8,
        "osm kahdeksan nyolc ośmiu восьми вісім οκτώ οχτώ tám שמונה هشت eight acht huit ocho oito otto восемь åtta osiem sekiz delapan आठ",
    ),
    (
        9,
        "devět yhdeksän kilenc nouă dziewięciu девяти εννέα εννιά chín תשע نه nine neun neuf nueve nove negen девять дев'ять nio dziewięć dokuz sembilan नौ",
    ),
    (
        10,
        "দশ பத்து دس kumi deset kymmenen tíz zece dziesięciu десяти десяток дев'ятеро δέκα mười עשר עשרה ده 열 ten zehn dix diez dieci tien десять tio dziesięć sepuluh عشر عشرة दस",
    ),
    (
        11,
        "jedenáct yksitoista tizenegy unsprezece jedenaście одинадцять έντεκα sebelas eleven undici одиннадцать elva",
    ),
    (
        12,
        "dvanáct kaksitoista tizenkettő tizenkét doisprezece dwanaście dwunastu дванадцять дюжину дюжины tucet tucat tuzin tuzina δώδεκα düzine ダース twelve zwölf zwoelf douze doce doze dodici twaalf двенадцать tolv",
    ),
    (13, "thirteen dreizehn treize trece tredici dertien тринадцать"),
    (14, "fourteen vierzehn quatorze catorce quattordici veertien четырнадцать"),
    (
        15,
        "patnáct viisitoista tizenöt cincisprezece piętnaście piętnastu п'ятнадцять пятнадцати δεκαπέντε fifteen fünfzehn quinze quince quindici vijftien пятнадцать",
    ),
    (16, "šestnáct szesnaście шістнадцять sixteen sechzehn dieciséis dezesseis sedici zestien шестнадцать"),
    (17, "seventeen siebzehn diecisiete dezessete diciassette zeventien семнадцать"),
    (
        18,
        "osmnáct osiemnaście вісімнадцять eighteen achtzehn dieciocho dezoito diciotto achttien восемнадцать",
    ),
    (19, "nineteen neunzehn diecinueve dezenove diciannove negentien девятнадцать"),
    (
        20,
        "বিশ কুড়ি இருபது بیس ishirini dvacet húsz douăzeci dwudziestu двадцати двадцять είκοσι עשרים بیست 스무 스물 twenty zwanzig vingt vingts veinte vinte venti twintig двадцать tjugo tyve dwadzieścia yirmi عشرين عشرون बीस",
    ),
    (21, "ventuno veintiuno"),
    (22, "ventidue veintidós veintidos"),
    (23, "ventitré veintitrés"),
    (24, "ventiquattro veinticuatro"),
    (25, "veinticinco venticinque पच्चीस"),
    (26, "ventisei veintiséis"),
    (27, "ventisette veintisiete"),
    (28, "ventotto veintiocho"),
    (29, "ventinove veintinueve"),
    (
        30,
        "ত্রিশ முப்பது تیس thelathini třicet harminc treizeci trzydziestu тридцати тридцять τριάντα ثلاثون שלושים سی 서른 tretti tredive trent thirty dreißig dreissig trente treinta trinta trenta dertig тридцать trettio trzydzieści otuz ثلاثين तीस",
    ),
    (
        40,
        "চল্লিশ চল্লিশটা நாற்பது چالیس arobaini čtyřicet negyven patruzeci czterdziestu сорока σαράντα أربعون ארבעים چهل 마흔 førti fyrre quarant forty fourty vierzig quarante cuarenta quarenta quaranta veertig сорок fyrtio czterdzieści kırk أربعين चालीस",
    ),
    (
        50,
        "পঞ্চাশ ஐம்பது پچاس hamsini padesát ötven cincizeci pięćdziesięciu пятидесяти полсотни πενήντα خمسون חמישים پنجاه 쉰 femti halvtreds cinquant fifty fünfzig fuenfzig cinquante cincuenta cinquenta cinquanta vijftig пятьдесят п'ятдесят femtio pięćdziesiąt elli خمسين पचास",
    ),
    (
        60,
        "ষাট அறுபது ساٹھ sitini šedesát hatvan șaizeci sześćdziesięciu шестидесяти шістдесят εξήντα ستون שישים شصت 예순 seksti sessant sextio sixty sechzig soixante sesenta sessenta sessanta zestig шестьдесят sextio sześćdziesiąt altmış ستين साठ",
    ),
    (
        70,
        "sedmdesát hetven șaptezeci siedemdziesiąt сімдесят εβδομήντα سبعون שבעים هفتاد 일흔 sytti settant seventy siebzig setenta settanta zeventig семьдесят sjuttio yetmiş سبعين सत्तर",
    ),
    (
        80,
        "osmdesát nyolcvan optzeci osiemdziesiąt вісімдесят ογδόντα ثمانون שמונים هشتاد 여든 ottant eighty achtzig ochenta oitenta ottanta tachtig восемьдесят åttio seksen ثمانين अस्सी",
    ),
    (
        90,
        "devadesát kilencven nouăzeci dziewięćdziesiąt дев'яносто ενενήντα تسعون תשעים نود 아흔 novant ninety neunzig noventa novanta negentig девяносто nittio doksan تسعين नब्बे",
    ),
    (
        100,
        "একশ একশো நூறு mia stovku stovky száz sată εκατό εκατόν מאה صد setki setkę setek сотню ста сто cien ciento cem centaine centena seratus مئة مائة dozens",
    ),
    (
        200,
        "двісті διακόσια διακόσιες מאתיים مائتا دویست doscientos doscientas duzentos duzentas двести dwieście مئتين مائتين ikiyüz",
    ),
    (300, "τριακόσια τριακόσιες ثلاثمئة سیصد trescientos trescientas trezentos trezentas триста trzysta"),
    (400, "чотириста τετρακόσια cuatrocientos cuatrocientas quatrocentos quatrocentas четыреста czterysta"),
    (
        500,
        "п'ятсот πεντακόσια πεντακόσιες خمسمئة خمسمائة پانصد quinientos quinientas quinhentos quinhentas пятьсот pięćset",
    ),
    (600, "seiscientos seiscientas seiscentos seiscentas шестьсот sześćset"),
    (700, "setecientos setecientas setecentos setecentas семьсот siedemset"),
    (800, "ochocientos ochocientas oitocentos oitocentas восемьсот osiemset"),
    (900, "novecientos novecientas novecentos novecentas девятьсот dziewięćset"),
    (1000, "hundreds hunderte hunderten centaines cientos centenas centinaia сотни seribu"),
    (10_000, "thousands tausende tausenden milliers miles milhares migliaia тысячи"),
];

/// Words that multiply what stands before them.
const FACTORS: &[(u64, &str)] = &[
    (10, "kymmentä mươi chục puluh"),
    (12, "dozen dutzend douzaine docena dúzia dozzina дюжина"),
    (
        100,
        "hundred hundert cent cento honderd hundra сотниц сотницы hundre yüz ratus trăm sataa sata stě százszor sută sute set sotni सौ",
    ),
    (
        1000,
        "thousand tausend mille mil mila duizend тысяча тысячу тысяч tusen tysiąc tysiące tysięcy ribu nghìn ألف हजार ngàn tisíc tisíce tuhat tuhatta ezer mie mii χίλια χίλιες χιλιάδες אלף هزار тисяч тисячу हज़ार",
    ),
    (1_000_000, "million millionen millions millón millones milhão milhões milione milioni miljoen миллион"),
];
/// Factors that mean something else when no number word stands before them.
const FACTORS_BEHIND_WORDS: &[(u64, &str)] =
    &[(20, "score"), (100, "cents sto"), (144, "gross"), (1000, "bin grand")];
/// Factors that are written behind digits.
const SUFFIXES: &[(u64, &str)] =
    &[(1000, "k kb kib kilobyte kilobytes"), (1_000_000, "mb mib megabyte megabytes")];

/// What compounds have besides numbers ("einundzwanzig").
const JOINTS: [&str; 3] = ["und", "en", "och"];
/// What may end a compound ("hundertmal").
const ENDINGS: [&str; 7] = ["mal", "fach", "krát", "krat", "szor", "szer", "ször"];
/// What may stand between the words of one number.
const CONNECTORS: [&str; 6] = ["and", "und", "y", "et", "e", "og"];

/// One part of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    value: u64,
    multiplies: bool,
}

/// A number that grows part by part.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    total: u64,
    current: u64,
    /// The part before: what comes next must be smaller, or a factor.
    last: u64,
}

impl Sum {
    /// Takes a part if it belongs to the same number.
    fn add(&mut self, part: Part) -> bool {
        let four_twenties = self.last == 4 && part.value == 20;
        if part.multiplies && part.value >= 1000 {
            self.total += self.current.max(1) * part.value;
            self.current = 0;
        } else if part.multiplies {
            self.current = self.current.max(1) * part.value;
        } else if four_twenties {
            self.current += 76;
        } else if self.last == 0 || part.value < self.last && (self.last >= 20 || part.value < 1) {
            self.current += part.value;
        } else {
            return false;
        }
        self.last = match part.multiplies {
            // "lima puluh dua": a smaller part may follow.
            true => part.value.max(20),
            false if four_twenties => 80,
            false => part.value,
        };
        self.total = self.total.min(MOST);
        self.current = self.current.min(MOST);
        true
    }

    fn value(self) -> u64 {
        (self.total + self.current).min(MOST)
    }
}

/// Every word of the tables; a word of several is what the first of them says.
static PARTS: LazyLock<HashMap<&'static str, Part>> = LazyLock::new(|| {
    let values = VALUES.iter().map(|entry| (entry, false));
    let mut parts = HashMap::new();
    for ((value, words), multiplies) in values.chain(FACTORS.iter().map(|entry| (entry, true))) {
        for word in words.split_whitespace() {
            parts.entry(word).or_insert(Part { value: *value, multiplies });
        }
    }
    parts
});

fn listed(table: &[(u64, &str)], word: &str) -> Option<u64> {
    table.iter().find(|(_, words)| words.split(' ').any(|listed| listed == word)).map(|(value, _)| *value)
}

fn part(word: &str) -> Option<Part> {
    // Korean counters ("스무개") and the Turkish "so many each" ("altmışar") have no blank before them.
    let counted = || word.strip_suffix(['개', '줄', '번', '장', '명', '칸', '회']);
    let each = ["şar", "şer", "ar", "er"].iter().filter_map(|ending| word.strip_suffix(ending));
    let find = |word: &str| PARTS.get(word).copied();
    let value = |word: &str| find(word).filter(|part| !part.multiplies);
    find(word)
        .or_else(|| counted().and_then(value))
        .or_else(|| each.filter_map(value).find(|part| part.value >= 10))
}

/// The longest number word at the beginning of a text, and its length.
fn first_part(text: &str) -> Option<(Part, usize)> {
    let mut ends = (2..=text.len()).rev().filter(|&end| text.is_char_boundary(end));
    ends.find_map(|end| part(&text[..end]).map(|part| (part, end)))
}

/// The value of a compound such as "dreihundertfünfzig", and what it ends with ("mal" of "hundertmal").
fn compound(word: &str) -> Option<(u64, Option<&'static str>)> {
    let ending = ENDINGS.into_iter().find(|ending| word.ends_with(ending));
    let mut rest = ending.map_or(word, |ending| &word[..word.len() - ending.len()]);
    let mut found: Vec<Part> = Vec::new();
    while !rest.is_empty() {
        // "einundzwanzig": "und" and not the French "un".
        let behind = JOINTS.iter().filter(|_| !found.is_empty()).find_map(|joint| rest.strip_prefix(joint));
        if let Some(behind) = behind.filter(|behind| first_part(behind).is_some()) {
            rest = behind;
        }
        let (part, end) = first_part(rest)?;
        found.push(part);
        rest = &rest[end..];
    }
    if found.len() < 2 && ending.is_none() {
        return None;
    }
    let mut sum = Sum::default();
    for part in found {
        // "einundzwanzig" has its small part first.
        if !sum.add(part) {
            sum.current += part.value;
        }
    }
    (sum.value() > 0).then_some((sum.value(), ending))
}

/// The value of a Chinese, Japanese or Korean numeral.
fn numeral(word: &str) -> Option<u64> {
    let (mut total, mut current, mut digit) = (0u64, 0u64, None::<u64>);
    for c in word.chars() {
        let unit = match c {
            '十' | '십' => 10,
            '百' | '백' => 100,
            '千' | '천' => 1000,
            '万' | '萬' | '만' => 10_000,
            _ => {
                digit = Some(match c {
                    '零' | '〇' | '영' => 0,
                    '一' | '일' => 1,
                    '二' | '两' | '兩' | '이' => 2,
                    '三' | '삼' => 3,
                    '四' | '사' => 4,
                    '五' | '오' => 5,
                    '六' | '육' => 6,
                    '七' | '칠' => 7,
                    '八' | '팔' => 8,
                    '九' | '구' => 9,
                    _ => return None,
                });
                continue;
            }
        };
        let before = digit.take();
        if unit == 10_000 {
            total += (current + before.unwrap_or(0)).max(1) * unit;
            current = 0;
        } else {
            current += before.unwrap_or(1) * unit;
        }
        total = total.min(MOST);
    }
    Some((total + current + digit.unwrap_or(0)).min(MOST))
}

/// Whether words of this script stand without blanks between them.
pub(super) fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}')
}

/// A decimal digit of the usual scripts.
fn digit(c: char) -> Option<u64> {
    let zeros = ['0', '\u{0660}', '\u{06f0}', '\u{0966}', '\u{ff10}'];
    zeros.iter().find_map(|&zero| (c as u32).checked_sub(zero as u32).filter(|d| *d < 10)).map(u64::from)
}

fn is_letter(c: char) -> bool {
    // Signs of Indic and Thai vowels belong to the word.
    c.is_alphabetic() || matches!(c, '\u{0900}'..='\u{0dff}' | '\u{0e31}'..='\u{0e4e}')
}

/// A text in lower case as pieces.
fn pieces(text: &str) -> Vec<Piece> {
    let chars: Vec<char> = text.chars().collect();
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        let begun = at;
        at += 1;
        if digit(c).is_some() {
            let mut value = 0u64;
            let mut next = begun;
            while next < chars.len() {
                if let Some(d) = digit(chars[next]) {
                    value = (value * 10 + d).min(MOST);
                    next += 1;
                } else if ",.'’ ".contains(chars[next]) && is_group(&chars[next + 1..], chars[next]) {
                    next += 1;
                } else {
                    break;
                }
            }
            at = next;
            pieces.push(Piece::Digits(value));
        } else if is_letter(c) {
            let alone = is_unspaced(c) && !matches!(c, '\u{0e00}'..='\u{0eff}');
            // An apostrophe inside a Cyrillic word is one of its letters.
            let joined = |at: usize| {
                let cyrillic =
                    |at: usize| chars.get(at).is_some_and(|c| matches!(c, '\u{0400}'..='\u{04ff}'));
                "'’ʼ".contains(chars[at]) && cyrillic(at - 1) && cyrillic(at + 1)
            };
            while !alone
                && at < chars.len()
                && (is_letter(chars[at]) || joined(at))
                && (!is_unspaced(chars[at]) || is_unspaced(c))
            {
                at += 1;
            }
            let word: String = chars[begun..at].iter().collect();
            pieces.push(Piece::Word(word.replace(['’', 'ʼ'], "'")));
        } else if c == '\n'
            || "!?。！？".contains(c)
            || (c == '.' && chars.get(at).is_none_or(|n| n.is_whitespace()))
        {
            pieces.push(Piece::End);
        } else if c.is_whitespace() {
            pieces.push(Piece::Gap);
        } else {
            pieces.push(Piece::Mark(c));
        }
    }
    pieces
}

/// Whether three digits follow and no fourth: what is behind a separator of thousands. A blank counts only before three zeros.
fn is_group(chars: &[char], separator: char) -> bool {
    let digits = chars.iter().take_while(|c| digit(**c).is_some()).count();
    digits == 3 && (separator != ' ' || chars[..3].iter().all(|c| digit(*c) == Some(0)))
}

/// The pieces of a text in lower case, its numbers put together.
pub(super) fn read(text: &str) -> Vec<Piece> {
    let pieces = pieces(text);
    let mut read = Vec::with_capacity(pieces.len());
    let mut at = 0;
    while at < pieces.len() {
        let (piece, used) = number_at(&pieces[at..]);
        read.extend(piece);
        at += used;
    }
    read
}

/// What the first pieces are: a number of several pieces, or the first piece itself; and how many they were.
fn number_at(pieces: &[Piece]) -> (Vec<Piece>, usize) {
    match &pieces[0] {
        Piece::Digits(value) => {
            if let Some((value, used)) = formula(*value, pieces) {
                return (vec![Piece::Number(value)], used);
            }
            let mut sum = Sum { current: *value, ..Sum::default() };
            let used = more(pieces, 1, &mut sum, true);
            let bytes = matches!(&pieces[used - 1], Piece::Word(word) if BYTES.has(word));
            let unit = bytes.then(|| Piece::Word("bytes".into()));
            (std::iter::once(Piece::Number(sum.value())).chain(unit).collect(), used)
        }
        Piece::Word(word) => {
            if let Some(used) = numeral_length(pieces) {
                let written: String = pieces[..used]
                    .iter()
                    .filter_map(|piece| match piece {
                        Piece::Word(word) => Some(word.as_str()),
                        _ => None,
                    })
                    .collect();
                return (vec![Piece::Number(numeral(&written).unwrap_or(0))], used);
            }
            let mut sum = Sum::default();
            if let Some(part) = part(word) {
                sum.add(part);
                let used = more(pieces, 1, &mut sum, false);
                return (vec![Piece::Number(sum.value())], used + fraction_behind(&pieces[used..]));
            }
            match compound(word) {
                Some((value, ending)) => {
                    sum.current = value;
                    let used = if ending.is_some() { 1 } else { more(pieces, 1, &mut sum, false) };
                    let ending = ending.map(|ending| Piece::Word(ending.into()));
                    (std::iter::once(Piece::Number(sum.value())).chain(ending).collect(), used)
                }
                None => (vec![pieces[0].clone()], 1),
            }
        }
        other => (vec![other.clone()], 1),
    }
}

/// The value of a power ("2^10", "10**3") or a sum ("4+12+3") that begins the pieces, and how many pieces it is.
fn formula(first: u64, pieces: &[Piece]) -> Option<(u64, usize)> {
    let digits = |at: usize| match pieces.get(at) {
        Some(Piece::Digits(value)) => Some(*value),
        _ => None,
    };
    let is = |at: usize, mark: char| pieces.get(at) == Some(&Piece::Mark(mark));
    let exponent_at = if is(1, '^') {
        2
    } else if is(1, '*') && is(2, '*') {
        3
    } else {
        0
    };
    if let Some(exponent) = digits(exponent_at).filter(|_| exponent_at > 0) {
        let power = first.checked_pow(exponent.min(64) as u32).unwrap_or(MOST);
        return Some((power.min(MOST), exponent_at + 1));
    }
    let (mut sum, mut used) = (first, 1);
    loop {
        let gap = |at: usize| at + usize::from(pieces.get(at) == Some(&Piece::Gap));
        let plus = gap(used);
        let Some(value) = digits(gap(plus + 1)).filter(|_| is(plus, '+')) else { break };
        (sum, used) = ((sum + value).min(MOST), gap(plus + 1) + 1);
    }
    (used > 1).then_some((sum, used))
}

/// How many pieces "and a half" or the like is, behind a number.
fn fraction_behind(pieces: &[Piece]) -> usize {
    let mut words = pieces.iter().enumerate().filter(|(_, piece)| **piece != Piece::Gap);
    let mut word = || words.next().and_then(|(at, piece)| piece.word().map(|word| (at, word)));
    match (word(), word(), word()) {
        (Some((_, "and")), Some((_, "a")), Some((at, "half" | "third" | "quarter"))) => at + 1,
        _ => 0,
    }
}

/// Adds the number words that follow; returns how many pieces belong to the number.
fn more(pieces: &[Piece], mut used: usize, sum: &mut Sum, from_digits: bool) -> usize {
    loop {
        let mut next = used;
        let mut connected = false;
        while let Some(piece) = pieces.get(next) {
            match piece {
                Piece::Gap | Piece::Mark('-') => next += 1,
                Piece::Word(word) if !from_digits && !connected && CONNECTORS.contains(&word.as_str()) => {
                    connected = true;
                    next += 1;
                }
                _ => break,
            }
        }
        let Some(Piece::Word(word)) = pieces.get(next) else { return used };
        let factor = |table| listed(table, word).map(|value| Part { value, multiplies: true });
        let mut part = match from_digits {
            true => factor(SUFFIXES).or_else(|| factor(FACTORS)).filter(|_| !connected),
            false => part(word).or_else(|| factor(FACTORS_BEHIND_WORDS)),
        };
        if part.is_none() && !from_digits {
            part = compound(word).filter(|c| c.1.is_none()).map(|c| Part { value: c.0, multiplies: false });
        }
        let Some(part) = part else { return used };
        if !sum.add(part) {
            return used;
        }
        used = next + 1;
        if from_digits {
            return used;
        }
    }
}

/// How many of the first pieces are a numeral: one that has a unit in it, or one that is followed by a character that is none.
fn numeral_length(pieces: &[Piece]) -> Option<usize> {
    let is_numeral = |piece: &Piece| match piece {
        Piece::Word(word) => numeral(word).is_some(),
        _ => false,
    };
    let length = pieces.iter().take_while(|piece| is_numeral(piece)).count();
    (length > 0).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[u64]) {
        let numbers: Vec<u64> = read(text)
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Number(value) => Some(value),
                _ => None,
            })
            .collect();
        assert_eq!(numbers, expected, "{text}");
    }

    #[test]
    fn numbers_as_people_write_them() {
        check("500 times, 1,000 or 10.000 or 10 000", &[500, 1000, 10_000, 10_000]);
        check("in 5, 10, 100 steps; 3.14", &[5, 10, 100, 3, 14]);
        check("64x64, 25 by 40, 5k, 2 kb, 50 cents", &[64, 64, 25, 40, 5000, 2000, 50]);
        check("two hundred and fifty-five, fifteen hundred, a hundred", &[255, 1500, 100]);
        check("one thousand two hundred and six; three dozen", &[1206, 36]);
        check("one two three", &[1, 2, 3]);
        check("hundertfünfzig mal, zweihundertmal, einundzwanzig, dreitausend", &[150, 200, 21, 3000]);
        check("ciento veinte veces, dos mil, treinta y cinco", &[120, 2000, 35]);
        check("deux cents fois, quatre-vingt-dix, mille", &[200, 90, 1000]);
        check("duecento volte, honderdvijftig keer, tvåhundra gånger", &[200, 150, 200]);
        check("двести двадцать раз, сто п’ятдесят разів", &[220, 150]);
        check("写一百遍，两千五百个，500次，三万", &[100, 2500, 500, 30_000]);
        check("백 번, 오십 줄, 100번, 千個", &[100, 50, 100, 1000]);
        check("१०८ बार, ٢٠٠ مرة", &[108, 200]);
        check("2^10 nops, 3 x 10^3, (4+12+3), 10**2", &[1024, 3, 1000, 19, 100]);
        check("thirty-three and a third times, five score", &[33, 100]);
        check("quarantotto, devětkrát, kaksikymmentäviisi, ötvenszer, σαράντα φορές", &[48, 9, 25, 50, 40]);
        check("스무개 여든줄, altmışar daire", &[20, 80, 60]);
        check("6 chục lần, lima puluh dua kali, hai mươi, дюжину раз, 스무 번", &[60, 52, 20, 12, 20]);
        check("the cat and the undertone in the tent, once", &[]);
    }
}
