"""Words, names and random strings of many kinds and scripts, the material every skill is built from."""

import re
from pydoc_data.topics import topics

FIRST_NAMES = """Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Liam Maria Noah Olivia Peter Quinn Rosa Sam Tina Uma
Victor Wendy Xavier Yara Zoe Anna Ben Clara Daniel Eva Felix Georg Hannah Ivan Julia Kenji Laura Mia Nina Oscar Paula Ravi Sofia Tom
Ursula Vera Walter Yuki Zara Marco Elena Lucas Fatima Ahmed Priya Chen Wei Mei Hiro Sakura Olga Dmitri Lars Ingrid Pablo Lucia Amir
Leila Kofi Ama Sven Astrid Bruno Chloe Diego Esther Finn Greta Hugo Isla Jonas Kira Leo Max Nora Otto Pia Rita Sara Theo Zed
Mike John Jane Joe Ann Kim Lee Ella Ada Alan Linus Ruth Paul Mark Luke James Mary Susan Linda Kate Steve Tim Amy""".split()
LAST_NAMES = """Smith Jones Brown Miller Davis Wilson Moore Taylor Anderson Thomas Jackson White Harris Martin Garcia Robinson Clark Lewis
Walker Hall Young King Wright Lopez Hill Scott Green Adams Baker Nelson Carter Turing Lovelace Hopper Meyer Schmidt Weber Tanaka Sato
Ivanov Petrov Rossi Silva Costa Kumar Singh Nguyen Khan Ali Novak Larsen Berg Dubois Bernard""".split()
CITIES = """Paris London Berlin Madrid Rome Vienna Oslo Tokyo Kyoto Osaka Beijing Shanghai Seoul Delhi Mumbai Cairo Lagos Nairobi Lima
Bogota Quito Havana Boston Chicago Denver Dallas Seattle Austin Miami Toronto Montreal Sydney Melbourne Auckland Dublin Lisbon Porto
Athens Prague Warsaw Budapest Zurich Geneva Munich Hamburg Lyon Milan Naples Moscow Kyiv Istanbul Ankara Tehran Dubai Bangkok Hanoi
Jakarta Manila Singapore Helsinki Stockholm Copenhagen Brussels Amsterdam Reykjavik Atlanta Phoenix Houston Nice Turin Bern""".split()
COUNTRIES = """France Germany Spain Italy Japan China India Brazil Peru Chile Mexico Canada Egypt Kenya Norway Sweden Finland Poland
Greece Turkey Ireland Portugal Austria Iceland Cuba Ghana Nepal Vietnam""".split()
COLORS = "red blue green yellow orange purple black white pink brown gray teal violet gold silver cyan magenta crimson indigo".split()
ANIMALS = """cat dog horse cow pig sheep goat lion tiger bear wolf fox rabbit mouse owl eagle hawk duck goose swan frog turtle snake
shark whale dolphin octopus crab bee ant spider otter badger panda koala zebra giraffe elephant parrot penguin lizard hamster""".split()
FOODS = """apple banana cherry grape lemon mango peach pear plum melon bread cheese butter honey rice pasta soup salad pizza taco
sushi curry cake pie cookie chocolate coffee tea juice milk water wine beer egg bacon carrot potato tomato onion garlic pepper""".split()
THINGS = """table chair lamp book pen paper phone laptop keyboard screen window door key lock clock watch camera guitar piano violin
drum bottle cup plate spoon knife fork hat coat shoe shirt sock glove scarf bag box rope ladder hammer saw nail brush bike car
truck train plane boat ship rocket engine wheel bridge road river lake sea island mountain hill forest tree flower garden stone
cloud rain snow wind storm sun moon star planet sky fire ice sand metal glass wood wool silk town village castle tower""".split()
ADJECTIVES = """big small fast slow hot cold new old happy sad bright dark loud quiet soft hard sweet sour clean dirty rich poor
strong weak tall short long wide narrow deep heavy light brave calm clever funny gentle kind lazy lucky proud shy silly wild""".split()
VERBS = """run walk jump sing dance read write draw paint cook bake drive fly swim climb build break fix open close push pull carry
throw catch find lose keep give take send bring buy sell learn teach play work sleep dream laugh cry smile wait watch listen""".split()
FOREIGN = """你好 世界 北京 上海 月亮 太阳 学习 朋友 谢谢 今天天气很好 我喜欢喝茶 春天 机器学习 苹果 图书馆 中文 人工 火车站 再见 早上好
こんにちは さくら ありがとう カメラ テスト 東京 日本語 おはよう 猫が好き ラーメン 한국어 안녕하세요 서울 사랑 감사합니다 김치
привет мир Москва спасибо доброе утро книга кошка Россия солнце река зима школа друг хлеб молоко яблоко красный
Καλημέρα κόσμος Αθήνα θάλασσα ουρανός φίλος νερό ήλιος βιβλίο ελλάδα
café naïve résumé über Straße schön Müller Zürich crème brûlée jalapeño piñata mañana señor São Paulo coração façade élève garçon
Ångström smörgåsbord Łódź źródło žluťoučký kůň håndværk fjörður Þór ğüzel çay İstanbul şeker Đà Nẵng phở tiếng Việt
مرحبا سلام كتاب שלום תודה ספר नमस्ते भारत दुनिया สวัสดี ขอบคุณ გამარჯობა Բարեւ
🙂 🚀 🎉 🐱 🌍 ❤️ 👍 🔥 ☕ 🍎 🎵 ✅ ⭐ 🐳 🦊""".split()

COMMON = sorted({word for text in topics.values() for word in re.findall(r"\b[a-z]{2,11}\b", text)})
EVERYDAY = COLORS + ANIMALS + FOODS + THINGS + ADJECTIVES + VERBS
SYLLABLE_HEADS = "b c d f g h j k l m n p qu r s t v w x y z bl br cl cr dr fl fr gl gr pl pr sh sl sn sp st str th tr ch".split()
SYLLABLE_HEARTS = "a e i o u a e i o u ai au ea ee ie oa oo ou".split()
SYLLABLE_TAILS = ["", "", "", "", "n", "r", "l", "s", "t", "m", "k", "x", "nd", "rt", "sh", "ng", "p", "d", "th", "ck"]
SCRIPTS = [
    "абвгдежзийклмнопрстуфхцчшщъыьэюяАБВГДЕЖЗИКЛМНОПРСТЭЮЯ",
    "αβγδεζηθικλμνξοπρστυφχψωάέήίόύώΑΒΓΔΕΘΛΞΠΣΦΨΩ",
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん",
    "アイウエオカキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワン",
    "àáâäãåæçèéêëìíîïñòóôöøùúûüýÿßąćęłńśźżčďěňřšťůžğışőűăâîșțÀÉÖÜÇÑŠŽ",
    "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长知民样现分将外但身些与高意进把法此实回二理美点月明其种声全工己话儿者向情部正名定女问力机给等几很业最间新什打便位因重被走电四第门相次东政海口使教西再平真听世气信北少关并内加化由却代军产入先山五太水万市眼体别处总才场师书比住员九笑性通目华报立马命张活难神数件安表原车白应路期叫死常提感金何更反合放做系计或司利受光王果亲界及今京务制解各任至清物台象记边共风战干接它许八特觉望直服毛林题建南度统色字请交爱让认算论百吃义科怎元社术结六功指思非流每青管夫连远资队跟带花快条院变联权往展该领传近留红治决周保达办运武半候七必城父强步完革深区即求品士转量空甚众技轻程告江语英基派满式李息写呢识极令黄德收脸钱党倒未持取设始版双历越史商千片容研像找友孩站广改议形委早房音火际则首单据导影失拿网香似斯专石若兵弟谁校读志飞观争究包组造落视济喜离虽坏兴切古集",
    "가나다라마바사아자차카타파하고노도로모보소오조초코토포호구누두루무부수우주추쿠기니디리미비시이지한국서울김안녕감사합학생물불",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "अआइईउऊएओकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौं",
    "กขคงจชซญดตถทนบปผฝพฟมยรลวสหอะาิีึืุูเแโใไ",
]
EMOJI = "😀😁😂🤣😊😍🤔😎😢😡👍👎👏🙏💪🎉🎈🎁🚀🚗🚲🏠🌍🌙🌞⭐🔥💧🌈🍎🍌🍕🍔☕🍺🐶🐱🐭🦊🐻🐼🐸🐵🦁🐧🐢🐙🐝🦋🌸🌳❤💙💚💛⚡✅❌🎵🎸⚽🏀🏆📚💡🔑🔔"


def pseudo_word(rng, syllables=None):
    count = syllables or rng.choice((1, 2, 2, 2))
    return "".join(rng.choice(SYLLABLE_HEADS) + rng.choice(SYLLABLE_HEARTS) + rng.choice(SYLLABLE_TAILS) for _ in range(count))


def letters(rng, low=2, high=7):
    alphabet = rng.choice(("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(low, high)))


def code(rng):
    shape = rng.choice(("A99", "AA-99", "aa9a", "99-99", "A9A9", "999", "9999", "99999", "AAA-999", "a9-a9", "99:99", "9.9.9", "9.9"))
    pools = {"A": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "a": "abcdefghijklmnopqrstuvwxyz", "9": "0123456789"}
    return "".join(rng.choice(pools.get(c, c)) for c in shape)


def cased(rng, word):
    kind = rng.random()
    return word if kind < 0.75 else word.capitalize() if kind < 0.95 else word.upper()


def english_word(rng):
    kind = rng.random()
    if kind < 0.64:
        return rng.choice(EVERYDAY)
    if kind < 0.94:
        return rng.choice(COMMON)
    return pseudo_word(rng)


def foreign_word(rng):
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(FOREIGN)
    if kind < 0.92:
        script = rng.choice(SCRIPTS)
        return "".join(rng.choice(script) for _ in range(rng.randint(1, 5)))
    return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 3)))


def name(rng):
    kind = rng.random()
    if kind < 0.72:
        return rng.choice(FIRST_NAMES)
    if kind < 0.88:
        return rng.choice(FIRST_NAMES) + " " + rng.choice(LAST_NAMES)
    if kind < 0.95:
        return pseudo_word(rng).capitalize()
    return foreign_word(rng)


def place(rng):
    kind = rng.random()
    if kind < 0.76:
        return rng.choice(CITIES)
    if kind < 0.86:
        return rng.choice(COUNTRIES)
    if kind < 0.9:
        return rng.choice(("New", "San", "Port", "Saint", "North")) + " " + pseudo_word(rng).capitalize()
    if kind < 0.96:
        return pseudo_word(rng).capitalize()
    return foreign_word(rng)


def value_word(rng):
    """One word that may stand as a value: real, invented, foreign or a code."""
    kind = rng.random()
    if kind < 0.68:
        return cased(rng, english_word(rng))
    if kind < 0.84:
        return name(rng).split()[0]
    if kind < 0.92:
        return foreign_word(rng)
    if kind < 0.95:
        return letters(rng)
    return rng.choice("abcdefghijkmnpqrstuvwxyz") + code(rng)


def short_phrase(rng, low=1, high=4):
    words = [english_word(rng) for _ in range(rng.randint(low, high))]
    text = " ".join(words)
    return text.capitalize() if rng.random() < 0.3 else text


def integer(rng):
    digits = rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5))
    number = rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)
    return -number if rng.random() < 0.06 else number


def decimal(rng):
    return f"{rng.randint(0, 99)}.{rng.randint(1, 99)}"
