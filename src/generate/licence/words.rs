//! Words by which requests are known: for repetition, for things that are alike by nature, for measures of a text. Lower case.
//!
//! Lists are strings of words, parted by blanks. A word of a script without blanks, or one with endings, is known by its beginning.

use std::collections::HashSet;

use super::numbers::is_unspaced;

/// A list of words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words(&'static str);

impl Words {
    /// Whether a word is in the list; where words take endings (Korean, Thai), whether one of the list is its beginning.
    pub(super) fn has(self, word: &str) -> bool {
        let takes_endings = word.starts_with(takes_endings);
        self.0.split_whitespace().any(|listed| listed == word || (takes_endings && word.starts_with(listed)))
    }

    /// Whether one of the list stands in a text; "_" is a blank.
    pub(super) fn is_in(self, said: &Said<'_>) -> bool {
        self.0.split_whitespace().any(|listed| said.has(listed))
    }
}

/// A text of words parted by single blanks, which begins and ends with one, ready for many questions.
#[derive(Debug)]
pub(super) struct Said<'a> {
    text: &'a str,
    words: HashSet<&'a str>,
    /// It has a script in which words are found inside of others.
    has_unspaced: bool,
}

impl<'a> Said<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let has_unspaced = text.chars().any(|c| is_unspaced(c) || takes_endings(c));
        Self { text, words: text.split_whitespace().collect(), has_unspaced }
    }

    /// Whether it begins with a word of the list.
    pub(super) fn begins_with(&self, list: Words) -> bool {
        self.text.split_whitespace().next().is_some_and(|word| list.has(word))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether a word or a phrase ("_" is a blank) stands in it.
    fn has(&self, listed: &str) -> bool {
        if listed.starts_with(is_unspaced) || listed.starts_with(takes_endings) {
            return self.has_unspaced && self.text.contains(&listed.replace('_', " "));
        }
        match listed.split_once('_') {
            None => self.words.contains(listed),
            Some((first, _)) => {
                self.words.contains(first) && self.text.contains(&format!(" {} ", listed.replace('_', " ")))
            }
        }
    }
}

/// Whether words of this script carry their endings without a blank: Korean and Thai.
fn takes_endings(c: char) -> bool {
    matches!(c, '\u{ac00}'..='\u{d7a3}' | '\u{0e00}'..='\u{0e7f}')
}

/// Behind a number: so many copies of whatever it is.
pub(super) const TIMES: Words = Words(
    "times copies repetitions repeats iterations duplicates mal male kopien wiederholungen veces copias repeticiones разів разу fois exemplaires \
     répétitions vezes cópias repetições volte copie ripetizioni keer maal раз раза копий повторений razy krát kez defa kere مرة مرات \
     बार ครั้ง รอบ lần kali gånger ganger gange kertaa دفعہ বার முறை தடவை mara krát krat szor szer ször alkalommal ori φορές بار مرتبه рази раза פעמים 次 遍 回 度 번 회",
);

/// Behind a number: so many things that are alike by nature.
pub(super) const THINGS: Words = Words(
    "rows lines columns line row ligne línea riga linha linje satır satıra baris řádek řádku řádků wierszu řádky рядків лінії rânduri rând zeros zeroes ones nulls spaces dashes dots stars asterisks hashes elements entries items instructions cells \
     squares pixels nops characters chars bytes bits digits letters symbols statements blanks underscores equals signs samples steps \
     beats bars tiles boxes blocks bricks seats emojis hearts records copies objects tags width wide high long length staves strokes \
     nucleotides decimals decimal_places dezimalstellen nachkommastellen décimales decimales decimali casas_decimais цифр знаков bases bytes byte \
     zeilen reihen spalten nullen einsen leerzeichen zeichen striche sterne sternchen punkte einträge elemente felder \
     filas líneas columnas ceros unos espacios guiones puntos asteriscos elementos caracteres celdas \
     lignes rangées colonnes zéros espaces tirets étoiles points éléments caractères cases \
     linhas colunas espaços traços pontos elementos caracteres righe colonne zeri spazi trattini punti \
     regels rijen kolommen nullen строк строки столбцов нулей пробелов звёздочек символов wierszy satır sıfır صف سطر صفر पंक्तियाँ \
     个 個 行 列 条 份 张 枚 줄 개 칸 행 열 แถว บรรทัด dòng baris rader nollor",
);

/// Those of them that are bytes: written out, each takes several characters.
pub(super) const BYTES: Words =
    Words("bytes byte kb kib kilobyte kilobytes mb mib megabyte megabytes octets");

/// Behind a number: the length of a text, or thoughts that differ, which is no wish for repetition.
pub(super) const MEASURES: Words = Words(
    "words word sentences sentence paragraphs paragraph pages page tokens minutes minute seconds second year years old dollars euros \
     percent degrees degree km miles kg lbs people facts reasons ideas tips questions ways things points \
     wörter wörtern worte worten sätze sätzen absätze absätzen seiten minuten jahre palabras frases párrafos páginas minutos años \
     mots phrases paragraphes pages ans palavras parágrafos parole frasi paragrafi pagine woorden zinnen слов предложений \
     страниц słów kelime كلمة शब्द शब्दों 字 词 詞 句 段 页 年 月 日 岁 分 단어 자 คำ từ kata ord",
);

/// Before a number: the most that is wanted.
pub(super) const LIMITS: Words = Words(
    "most maximum max within than under limit höchstens maximal más menos moins plus máximo не_более 最多 不超过",
);

/// Before a number: what a text is about, or when.
pub(super) const TOPICS: Words = Words(
    "about the these those his her their its in on since after year page chapter level last next past über der die das den im jahr sobre \
     los las el del sur les au aux environ sui gli le про об в",
);

/// Before the end of a range.
pub(super) const UP_TO: Words =
    Words("to through till until below bis hasta até à fino do до 到 至 から まで");

/// Words behind a number that are no things.
pub(super) const NO_THINGS: Words = Words(
    "and or of in on at for the a an to is was were are by with from as but that this it und oder von im am für der die das ist mit y o de \
     en por la el los las con et ou du le les des dans pour e do da em и или из",
);

/// Before a number: a size of what is to be made.
pub(super) const SIZED: Words = Words("of length size exactly von der_länge de longitud longueur из");

/// Behind "N times": a comparison.
pub(super) const COMPARES: Words = Words(
    "as more less better faster slower larger bigger smaller higher lower stronger weaker cheaper heavier longer shorter greater than per \
     größer schneller mehr besser más mais",
);

/// The request's own words for repeating.
pub(super) const REPEATS: Words = Words(
    "repeat repeats repeated repeating repetition repeatedly chant chanting mantra spam imitate transcribe sound_of stuck broken_record lots_of_times many_times \
     a_lot_of_times wall_of row_of rows_of line_of lines_of string_of series_of fill fills filled filling full_of nothing_but nothing_else \
     copy_paste alternate alternately alternating abwechselnd duplicate duplicates clone clones loop loops identical unroll unrolled run_lengths \
     wiederhole wiederholen wiederholt lauter voller identisch identische identischen repite repetir repetido llena lleno idénticas \
     répète répéter répétez rempli identiques repita repetir repete cheio ripeti ripetere herhaal повтори повторяй повторить \
     powtórz tekrarla كرر दोहराओ 重复 重複 反复 繰り返 반복 ทำซ้ำ lặp_lại ulangi upprepa",
);

/// Text that only fills room; how long it is says how often its one paragraph may come.
pub(super) const FILLER: Words = Words(
    "lorem_ipsum lorem filler placeholder dummy blindtext platzhalter relleno remplissage 占位 填充 ダミー",
);

/// All of many are alike.
pub(super) const ALIKE: Words = Words(
    "same identical all only each every always constant just empty blank free equal uniform default nothing solid \
     gleich gleiche gleichen identisch identische identischen alle nur jede jeder jedes jedem immer leer mismo misma iguales idénticas \
     todas todos solo cada siempre vacío même mêmes tous toutes chaque toujours vide mesmo iguais todas cada sempre stesso uguali \
     tutti ogni одинаковых одинаковые все каждый только 相同 一样 全部 每 都 只 同じ 全て すべて だけ 같은 모두 매",
);

/// Something happens so often in so long.
pub(super) const RATES: Words = Words(
    "bpm hz per_minute a_minute each_minute every_minute pro_minute jede_minute par_minute por_minuto al_minuto в_минуту na_minutę \
     metronome metronom métronome metronomo pulse heartbeat heartbeats beats herzschlag syke lyöntiä lyönnit puls пульс 每分钟 毎分 분에",
);

/// The same, once a second.
pub(super) const EVERY_SECOND: Words = Words(
    "per_second a_second each_second every_second once_a_second pro_sekunde jede_sekunde par_seconde por_segundo al_secondo в_секунду \
     na_sekundę 每秒 毎秒 1秒 초에",
);

pub(super) const SECONDS: Words = Words(
    "second seconds sec secs s sekunde sekunden seconde secondes segundo segundos secondi секунд секунды sekund sekuntia 秒 초",
);
pub(super) const MINUTES: Words = Words(
    "minute minutes min mins minuten minuto minutos minuti минут минуты minut minuuttia minuter dakika phút menit 分 分钟 분",
);
pub(super) const HOURS: Words = Words(
    "hour hours h hr hrs stunde stunden heure heures hora horas ore часа часов godzin godziny tuntia timmar saat giờ jam 小时 時間 시간",
);

/// What is given is to be told of or mended, not to be said again.
pub(super) const ASKS_ABOUT: Words = Words(
    "explain explains मतलब अर्थ meaning mean means translate proofread proof_read correct correction fix rephrase reword paraphrase summarize summarise summary \
     edit grammar origin_of how_do_you_say was_heißt wie_sagt_man cómo_se_dice qué_quiere_decir comment_dit_on come_si_dice como_se_diz как_сказать \
     jak_powiedzieć hoe_zeg nasıl_denir 怎么说 erkläre erklär bedeutet bedeutung übersetze korrigiere explica significa significado traduce traduzca corrige \
     explique signifie traduis traduire corriger explica_o traduza spiega traduci correggi объясни значит переведи исправь wyjaśnij \
     przetłumacz popraw açıkla açıklar ne_demek anlamı çevir düzelt 解释 意思 翻译 什么意思 改正 修改 意味 訳 直して 번역 뜻",
);

/// A text about something, advice, code that does something: what is answered by what is not said twice.
pub(super) const PROSE: Words = Words(
    "tell_me_about talk_about write_about know_about_the something_about everything_about more_about words_about poem_about story_about think_about \
     thoughts_about short_poem short_story essay article describe description discuss summary overview review a_letter cover_letter email mail \
     biography history compare comparison difference differences advice tips trick recipe snacks cook recommend suggest suggestions ideas names_for \
     options best_way better_than a_speech give_speech speech_about analysis analyze analyse opinion quiz questions questionnaire symptoms doctor routine workout itinerary budget \
     trip guide tutorial help script_that python_script shell_script bash_script function formula regex query sql excel snippet bash python_code command validate convert calculate solve \
     probability example prove what_can what_should what_do resignation application derivative how_does how_do why \
     aufsatz artikel beschreibe beschreib zusammenfassung brief vergleiche unterschied rat rezept empfiehl warum wieso hilf ideen tipps gedicht_über \
     etwas_über mir_über text_über anschreiben bewerbungsanschreiben bewerbung reise ausflug beispiel beispiele was_kann was_heißt wie_oft am_besten \
     ensayo artículo describe resumen carta correo biografía compara diferencia consejo consejos receta recomienda ideas plan_de_viaje \
     por_qué ayúdame acerca_de poema_sobre cuento_corto derivada ejemplo ejemplos presupuesto \
     essai décris résumé lettre courriel biographie compare différence conseil conseils recette pourquoi aide_moi idée idées cadeau programme_de \
     propos_de au_sujet parle_moi exemple exemples itinéraire \
     redação artigo descreva resumo biografia diferença conselho conselhos receita recomende ajuda sobre bilhete exemplo ideias \
     saggio articolo descrivi riassunto lettera biografia differenza consiglio consigli ricetta consigliami perché aiutami breve_poesia esempio \
     esempi idee opstel artikel beschrijf samenvatting brief vergelijk verschil advies recept waarom help gedicht_over \
     эссе сочинение статью статья опиши обзор письмо записку биография сравни разница совет советы рецепт посоветуй почему помоги сварить приготовить \
     різниця порада рецепт поради esej artykuł opisz streszczenie biografia porównaj różnica rada porady przepis dlaczego pomóż zrobić robić przysłowie \
     kompozisyon makale tarif_et özet mektup karşılaştır fark farkı tavsiye tarifi neden hakkında arasında skillnad skillnaden recept råd ero resepti \
     διαφορά συνταγή συμβουλές מתכון ההבדל עצה resep perbedaan saran công_thức khác_nhau nấu \
     مقال رسالة ملخص وصفة لماذا نصائح قصة_قصيرة ساعدني الفرق निबंध लेख पत्र सारांश विधि क्यों मदद बारे मतलब बनाते शिकायत कहावत \
     文章 作文 论文 介绍 描述 总结 摘要 信件 比较 区别 建议 推荐 食谱 为什么 怎么 如何 关于 随笔 依据 邮件 \
     エッセイ 記事 作文 説明 要約 紹介 比較 違い アドバイス レシピ 教えて なぜ について 方法 メール \
     에세이 기사 설명 요약 소개 비교 차이 조언 추천 레시피 알려 왜 대해 방법 일정 외우 ทำยังไง วิธี สูตร",
);

/// At the beginning of a question, with or without its mark.
pub(super) const QUESTIONS: Words = Words(
    "how what which who whom whose when where why is are was were do does did can could should would will whats what_s \
     wie was welche welcher welches wer wann wo warum wieso ist sind kann qué que cuál cuándo cuánto cuántas cuántos cómo dónde es puedo quel quelle \
     quels quelles quand comment combien où est puis qual quais quando quanto quantas quantos como onde pq posso che quale quali dove come è sono \
     hoe welke wanneer waar hoeveel kan mag hur vad vilken när var varför kan hvordan hvad hvilken hvor miten mikä milloin kuinka paljonko \
     как что какой какая какие когда где сколько можно кто как_ли скільки який яка коли де чи що jak co który kiedy gdzie ile czy kolik kdy kde \
     nasıl ne hangi kaç nerede mi كيف كم ما متى أين هل איך מה כמה מתי האם कैसे क्या कितना कब πώς πόσο τι πού bagaimana berapa apa kapan \
     làm_sao bao_nhiêu hogyan mennyi mikor milyen cum cât când",
);

/// One thing for each of many others.
pub(super) const FOR_EACH: Words = Words(
    "for_each for_every each_of zeile_um_zeile ligne_après_ligne every_one one_per per_line per_row in_each in_every each_followed each_with every_day every_second \
     every_minute every_hour every_line every_row every_entry each_line each_row line_by_line one_by_one one_at_a_time für_jeden für_jede \
     für_jedes pro_zeile jeden_tag jeden_morgen cada_día cada_una todos_los_días chaque_jour todos_os_dias ogni_giorno ogni_riga každý_den \
     каждый_день каждую_строку кожен_день codziennie każde_wezwanie her_gün mỗi_ngày setiap_hari varje_dag joka_päivä κάθε 每天 每日 毎日 一行に 一行一 매일 para_cada por_línea pour_chaque par_ligne para_cada per_ogni для_каждого 每条 每个 每行 每一 各行",
);

/// Asks for something to be made, rather than told of.
pub(super) const MAKES: Words = Words(
    "draw write make create generate print give show design output produce build render fill put pad imitate simulate type sketch paint \
     zeichne schreibe schreib mache erstelle erzeuge drucke gib zeige male escribe haz crea genera imprime dame muestra dibuja écris fais \
     crée génère imprime donne montre dessine escreva faça crie gere imprima mostre desenhe scrivi fai crea stampa dammi mostra disegna \
     напиши сделай создай выведи покажи нарисуй schrijf maak teken napisz narysuj yaz çiz 写 画 生成 打印 输出 给我 書 描 作 써 그려 만들",
);

/// Besides those: what is put as a question is a wish.
pub(super) const BIDS: Words = Words(
    "say count sing recite list complete continue please pls can_you could_you would_you will_you for_me kannst_du könntest_du bitte puedes \
     podrías por_favor peux_tu pouvez_vous s_il_te_plaît você_pode pode puoi potresti per_favore можешь пожалуйста możesz proszę 请 帮我 \
     能不能 お願い ください 해줘 주세요",
);

/// Asks for words to be said.
pub(super) const SAYS: Words = Words(
    "write say shout scream grita gritar print type output answer respond reply shout echo keep draw schreibe schreib sag sage antworte escribe di responde imprime \
     écris dis réponds escreva diga responda scrivi rispondi напиши скажи отвечай schrijf napisz yaz اكتب लिखो 写 说 書 言 답 써 \
     viết tulis skriv",
);

/// Pictures and data of which marks are the matter.
pub(super) const DRAWN: Words = Words(
    "ascii base64 hexdump hex emoji emojis brainfuck morse box border frame grid matrix array pattern checkerboard chessboard chess wall \
     bricks banner line divider separator rectangle square triangle pyramid diamond maze map board bitmap pixel tiles wave tab tabs stave \
     staves binary bytes zeros dump silence csv spreadsheet tsv table dna contents form sheet underline dashes dots stars asterisks spaces \
     blank seating plus signs \
     rahmen gitter muster tabelle linie cuadro rejilla matriz tabla línea cadre grille matrice tableau ligne tabela riga tabella таблица \
     рамку 表格 矩阵 图案 棋盘 図 표",
);

/// The same, whether or not the request says that they are to be made.
pub(super) const DRAWN_ALONE: Words = Words("dots_and_dashes ascii base64 hexdump emojis brainfuck");

/// Lists of records and plans, whose entries are alike but for a number or a name.
pub(super) const RECORDED: Words = Words(
    "log logs csv yaml json xml html sql table schedule timetable records dataset data plan config configuration compose makefile inserts \
     test tests users entries list_of_all verses stanzas litany lyrics contents index playlist itinerary calendar diary \
     protokoll tabelle liste_aller zeitplan daten registros tabla horario datos tableau données emploi_du_temps tabela dados \
     日志 数据 表格 列表 ログ データ 데이터",
);

/// Songs, which have refrains.
pub(super) const SUNG: Words = Words(
    "lyrics chorus refrain chant sing lullaby liedtext schlaflied wiegenlied berceuse canción_de_cuna canção_de_ninar ninna_nanna ninni \
     kołysanka kołysankę slaapliedje vaggvisa колыбельная колыбельную hát_ru 摇篮曲 子守唄 자장가 chor estribillo coro letra paroles chœur choeur ritornello припев хор refren chór nakarat \
     refräng refrein reff điệp_khúc 歌词 副歌 合唱 歌詞 サビ 가사 후렴",
);

/// Prayers of which the parts are said many times.
pub(super) const PRAYED: Words = Words(
    "mantra mantras jesus_prayer prayer_rope rosary rosario rosário rosenkranz różaniec różańca koronka koronki koronkę chapelet avemaría avemarías hail_marys ave_maria \
     kyrie_eleison litany litanie litania letanía ladainha litanei kirtan dhikr zikr tasbih мантра мантру молитва молитву молитвы акафист \
     मंत्र जाप 念佛 念经 念経 お経 真言",
);

/// No end is wanted, of what is named.
pub(super) const ENDLESS: Words = Words(
    "forever endless endlessly infinite infinitely on_and_on until_you_hit until_you_reach until_you_run until_the_limit until_the_end to_the_bottom_of_the_page over_and_over again_and_again keep_repeating non_stop nonstop never_stop \
     without_stopping until_i_say as_many_times_as as_often_as as_long_as_you_can until_the_page_is_full immer_wieder ganz_lange endlos unendlich bis_ganz_unten \
     una_y_otra_vez sin_parar para_siempre encore_et_encore sans_fin sans_arrêt repetidamente sem_parar all_infinito senza_sosta hiç_susmasın hiç_durmadan bez_końca bez_przerwy zonder_ophouden utan_uppehåll tanpa_henti \
     снова_и_снова бесконечно mãi_không không_ngừng liên_tục đừng_dừng don_t_stop dont_stop hör_nicht_auf nicht_aufhören no_pares ne_t_arrête_pas não_pare não_para \
     non_fermarti non_smettere не_останавливайся без_остановки nie_przestawaj niet_stoppen बार_बार रुकना_मत بلا_توقف لا_تتوقف 不要停 别停 止まらず 멈추지 延々 一直 不停 无限 ずっと 無限 계속 끝없이",
);

/// Numbers are to be said one after the other.
pub(super) const COUNTS_OUT: Words = Words(
    "count countdown zähl zähle zählen cuenta contar compte compter conta conte contare tel считай сосчитай посчитай licz policz hitung \
     đếm गिनो गिनती 数一数 数数 倒数 数えて 세어",
);

/// What makes a noise, or says the same again.
pub(super) const SOUNDS: Words = Words(
    "sound sounds noise noises ticking clicking beeping ringing snoring dripping drips chugging siren parrot stuck_record broken_record hum humming laugh laughing laughter \
     giggle cackle geräusch geräusche klang schallplatte papagei lachen lache schnarchen tropft tropfen bruit bruits perroquet rire rires ronflement goutte ruido sonido loro \
     risa carcajada gotea gotera ruído barulho som papagaio risada pinga rumore suono pappagallo risata gocciola geluid lawaai gelach druppelt ljud skratt звук звуки шум попугай смех хохот капает dźwięk odgłos papuga śmiech kapie sesi papağan gürültü kahkaha damlayan damlasın suara bunyi \
     tawa âm_thanh tiếng_cười صوت ضحكة आवाज़ तोता हँसी 声音 響声 响声 噪音 笑声 鹦鹉 大笑 音 笑い オウム 소리 앵무새 웃음",
);

/// Something takes long.
pub(super) const LONG: Words = Words(
    "for_ages for_a_long_time for_a_long_while way_too_long far_too_long really_long super_long longtemps richtig_lange so_richtig_lange sehr_lange ganz_lange viel_zu_lange \
     largo_rato mucho_rato muito_tempo a_lungo heel_lang länge долго bardzo_długo uzun_uzun खूब_लंबा बहुत_देर rất_lâu lama_sekali 很久 好久 很长 長く 오래 길게",
);

/// Nothing is to be left out for being alike.
pub(super) const IN_FULL: Words = Words(
    "written_out write_it_out write_it_all_out write_them_all_out write_them_out spelled_out in_full no_abbreviations without_abbreviations \
     no_shortcuts ausgeschrieben ohne_abkürzungen ohne_abkürzung sin_abreviar sin_abreviaturas en_toutes_lettres sans_abréger sans_abréviation \
     por_extenso sem_abreviar per_esteso senza_abbreviare без_сокращений без_скорочень bez_skrótów kısaltma_yapma kısaltmadan uitgeschreven \
     utan_förkortningar 不要省略 别省略 不省略 省略しない 省略せず 略さず 생략_없이 생략하지",
);

/// The message only refers to the one before it.
pub(super) const REFERS_BACK: Words = Words(
    "continue again more go_on keep_going same once_more another weiter nochmal noch_einmal mehr sigue continúa otra_vez más encore \
     continuez continua ancora ещё продолжай 继续 再 続けて もっと 계속 다시",
);

/// Marks and what they are called.
pub(super) const SPOKEN: &[(&str, Words)] = &[
    ("0", Words("zero zeros zeroes null nullen cero ceros zéro zéros zeri нулей sıfır 零")),
    ("1", Words("one ones eins einsen uno unos")),
    ("6", Words("six")),
    ("7", Words("seven")),
    ("-", Words("dash dashes hyphen hyphens minus strich striche guiones tirets")),
    (".", Words("dot dots period periods point points punkte puntos")),
    ("*", Words("star stars asterisk asterisks sterne sternchen asteriscos étoiles 星号")),
    ("#", Words("hash hashes pound")),
    ("_", Words("underscore underscores blank blanks")),
    ("=", Words("equal equals")),
    ("!", Words("exclamation exclamations")),
    ("?", Words("question")),
    ("+", Words("plus")),
    ("~", Words("tilde tildes")),
    (" ", Words("space spaces blank blanks leerzeichen espacios espaces 空格")),
    (
        "\n",
        Words(
            "newline newlines line_break line_breaks blank_line blank_lines empty_line empty_lines leerzeilen 空行",
        ),
    ),
];
