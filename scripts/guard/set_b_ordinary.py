#!/usr/bin/env python3
"""set_b_ordinary.py FOLDER: writes b-ordinary.jsonl, ordinary requests whose reply begins well and falls into a loop.
O(name, trap, request, opening, unit, sep): trap=1 means the request has numbers/quotes/innocent 'repeat' words.
unit None: the last paragraph of the opening is repeated."""
import json, os, sys

FOLDER = sys.argv[1]
ITEMS, META = [], {}

def O(name, trap, request, opening, unit, sep=" ", glue=" "):
    opening = opening.strip()
    kind = "paragraph" if unit is None else ("chain" if sep == "-" else "unit")
    if unit is None:
        unit, sep, glue = opening.split("\n\n")[-1], "\n\n", "\n\n"
    size = 8100 + (len(ITEMS) * 977) % 5600
    n = size // (len(unit) + len(sep)) + 2
    loop = sep.join([unit] * n)[:size]          # cut mid-unit, as at a token limit
    ITEMS.append({"name": name, "request": request, "reply": opening + glue + loop})
    META[name] = (trap, opening, unit, kind, len(loop))

# ------------------------------------------------------------------ English, innocent trigger words
O("en_breath_running", 1, "how many times per minute should I breathe when running? im 34 and just started c25k",
"""There is no single correct number, but most recreational runners take somewhere between 30 and 50 breaths per minute at an easy pace, and up to 60 when they push hard. As a beginner on Couch to 5K you should not worry about the count itself. A much better guide is the talk test: if you can say a full sentence without gasping, your effort is right. If you cannot, slow down or walk for a while. Many coaches also suggest linking your breath to your steps, because it keeps you relaxed and stops shallow chest breathing. The most popular rhythm is""",
"in for three steps, out for two steps,")

O("en_stitch_in_time", 1, "explain the phrase 'a stitch in time saves nine' to my 10 year old",
"""This is a very old saying, and it comes from sewing. Imagine you have a jumper with one tiny hole in the sleeve. If you sew it up straight away, you need just one stitch, and it takes a minute. But if you ignore it and keep wearing the jumper, the wool pulls and the hole grows. By next week you may need nine stitches instead of one! So the saying means that it is better to fix a small problem now, before it turns into a big problem later. For example, tidying your desk a little each evening is easier than cleaning a giant mess on Sunday. That is why people say""",
'"a stitch in time saves nine"')

O("en_fix_market", 1, "fix this sentence: 'Me and him goes to the market every days for buying breads.'",
"""Here is the corrected version of your sentence: He and I go to the market every day to buy bread.

Let me explain the changes. First, the subject of the sentence needs subject pronouns, so "me and him" becomes "he and I". Second, the subject is plural, therefore the verb has to be "go" and not "goes". Third, after the word "every" we always use a singular noun, which gives "every day". Fourth, to express a purpose English normally uses the infinitive, so "for buying" turns into "to buy". Finally, "bread" is uncountable and has no plural form here. The corrected sentence is:""",
"He and I go to the market every day to buy bread.")

O("en_poem_last_bus", 1, "write a short poem about the last bus home",
"""The Last Bus Home

The driver nods, the doors fold shut,
the market stalls have all been put
to bed beneath their canvas sheets,
and rain is polishing the streets.

A nurse asleep against the glass,
a boy who watches lampposts pass,
a man with roses, none too fresh,
a dog whose lead is string and mesh.

Nobody speaks, nobody needs
to say the thing each window reads:
that somewhere up the hill a light
is waiting for us every night.

The engine hums its only tune,
the puddles carry half a moon,""",
"and on we roll, and on we roll,", "\n", "\n")

O("en_table_rivers", 1, "make a table of the 6 longest rivers with length in km and miles and the continent",
"""Here is a table of the six longest rivers in the world. Please keep in mind that the exact figures depend on where one places the source and the mouth of a river, so different reference works disagree by a few percent, and the order of the first two is still being debated among geographers. I have rounded all lengths and converted them to miles with the usual factor of 0.6214.

| River | Length (km) | Length (mi) | Continent |
|---|---|---|---|
| Nile | 6,650 | 4,130 | Africa |
| Amazon | 6,400 | 3,976 | South America |
| Yangtze | 6,300 | 3,917 | Asia |""",
"| Mississippi–Missouri | 6,275 | 3,902 | North America |", "\n", "\n")

O("en_pharmacy_pt", 1, 'translate "where is the nearest pharmacy" into Brazilian portuguese and explain it word by word',
"""The natural translation is: Onde fica a farmácia mais próxima?

"Onde" means "where" and starts the question just as it does in English. "Fica" is a form of the verb "ficar", which is used for the fixed location of places such as buildings, streets and cities. You could also say "é", but "fica" sounds more natural. "A" is the feminine definite article, because the noun that follows is feminine. "Farmácia" is "pharmacy", with the stress on the second syllable. "Mais" means "more" or "most", and "próxima" means "near" and agrees with the feminine noun. So, put together, the part for the nearest pharmacy is""",
"a farmácia mais próxima")

O("en_groundhog", 1, "whats groundhog day about, one paragraph, no spoilers past the first half. i know its the one where the day repeats",
"""Groundhog Day follows Phil Connors, a vain and sarcastic television weatherman from Pittsburgh who is sent to the small town of Punxsutawney to report on its yearly festival. He hates the assignment, looks down on the locals and cannot wait to drive home with his producer Rita and the cameraman Larry. A blizzard forces them to stay another night. When the alarm clock goes off in the morning, Phil slowly understands that it is the second of February once more, and that nobody but him remembers anything. At first he panics, then he begins to enjoy a life without consequences. But whatever he tries,""",
"the radio clicks to six o'clock and the same song plays.")

O("en_washer_rinse", 1, "why does my washing machine repeat the rinse cycle again and again? bosch serie 4, no error code",
"""A machine that keeps returning to the rinse phase usually believes that there is still water, foam or an imbalance in the drum. The most common cause is too much detergent: the sensor sees foam and adds another rinse to get rid of it. The second one is a partly blocked drain pump filter, which you can find behind the small flap at the bottom right. Place a towel and a shallow bowl under it before you open it. The third cause is a drain hose that sits too low or is kinked behind the machine. Start with the filter, because it takes only a few minutes.""",
"Then run the machine empty and check the filter again.")

O("en_amoxicillin", 1, "doctor gave me amoxicillin 500mg 3 times daily for 7 days, do i have to wake up at night for it?",
"""No, you normally do not need to set an alarm in the middle of the night. "Three times daily" means that the doses should be spread as evenly as is practical over your waking hours, so that the level of the medicine in your blood stays fairly constant. A typical schedule would be seven in the morning, three in the afternoon and eleven at night. If you go to bed earlier, taking the last capsule right before sleeping is fine. You can take amoxicillin with or without food. Finish the whole course, even if you feel better after a few days. The important thing is to take it roughly""",
"every eight hours,")

O("en_illustrator_pattern", 1, "how do I make a repeat pattern in illustrator that tiles seamlessly, half drop. CS6",
"""In Illustrator CS6 the pattern tool makes this quite easy. Draw your motif on the artboard and select all of its parts. Then choose Object, Pattern, Make. The new swatch appears in the Swatches panel and the program switches to pattern editing mode, where you see the tile with dimmed copies around it. In the Pattern Options panel open the Tile Type menu and pick Brick by Column, and set the offset to one half. That is what textile designers call a half drop. Now adjust the width and height until the gaps look even, and move the elements that touch the edges.""",
"Drag the motif across the tile edge and check the preview.")

O("en_gf_snacks", 1, "Give me a list of 8 gluten free snacks for school, nut free as well pls",
"""Here are some ideas which are free from both gluten and nuts. Please still check the labels, because recipes change and traces can appear.

Apple slices with sunflower seed butter. Squeeze a little lemon on the slices so that they stay fresh until the break.

Rice cakes with cream cheese and cucumber. They are light and crunchy, and most children like to assemble them on their own.

Popcorn with a pinch of salt. It is naturally free from gluten, cheap to make in a large batch and easy to share with friends.

Carrot and pepper sticks with hummus. Pack the hummus in a small jar with a tight lid, and put the vegetables in a separate box so they stay crisp.""",
None)

O("en_row_row", 1, "who wrote 'Row, row, row your boat' and is it a lullaby or a song with a deeper meaning?",
"""The song is an American nursery rhyme and round, and its authorship is not certain. The words were printed for the first time in the middle of the nineteenth century with a different tune. The melody that everybody knows today is commonly credited to Eliphalet Oram Lyte, who published it in a collection for teachers in the 1880s. It is not a lullaby in the strict sense but a round: each group of singers starts one line later than the previous one. Some people read it as a small philosophy of life, in which we move gently along the stream of time. The famous opening goes""",
"row, row, row your boat,")

O("en_excel_fifth", 1, "excel formula to put a value in every 5th row, starting row 3",
"""You can do this with the MOD and ROW functions. The idea is simple: MOD gives you the remainder after a division, and ROW gives you the number of the current row. If you subtract the starting row first, the remainder will be zero in the third row, in the eighth row, in the thirteenth row and so on. Everywhere else the formula returns an empty string, so that the cells look blank. Enter it in the first cell of the column, then copy it down as far as you need it. Replace the word "value" with your own text or a cell reference:

```""",
'=IF(MOD(ROW()-3,5)=0,"value","")', "\n", "\n")

O("en_each_every", 1, "difference between 'each' and 'every'? my teacher marked 'each of students' wrong too",
"""Both words are used with singular nouns and both refer to all members of a group, but they look at the group in different ways. "Each" sees the members one by one, as separate individuals. "Every" sees the group as a whole. That is why "each" can be used for two things, as in "each hand", while "every" needs at least three. "Each" can also stand alone or be followed by "of", but then you need a determiner, so your teacher is right: it has to be "each of the students" or simply "each student". For emphasis English speakers sometimes join both words and say""",
"each and every one of")

O("en_active_voice", 1, "Change 'The meeting was cancelled by Tom on 3 May' to active voice and explain why it's better",
"""In the active voice the person who performs the action becomes the subject of the sentence. In your example, Tom is the one who did something, so he moves to the front, and the object of the action follows the verb. The result is shorter, it needs no form of "to be", and the reader knows at once who is responsible. The passive is not wrong, of course. It is useful when the doer is unknown or unimportant, or when you wish to be tactful. In a report about decisions, however, clarity matters more. The date can stay at the end of the sentence. So the best version is:""",
"Tom cancelled the meeting on 3 May.", "\n\n", "\n\n")

O("en_earworm", 1, "why do songs get stuck in your head on a loop? mine is a 90s ad jingle",
"""What you describe is very common: surveys suggest that more than nine out of ten people experience it at least once a week. Researchers think that it happens because music is stored in memory as a chain, where each fragment triggers the next one. When a tune is short, simple and a bit unusual, as jingles are designed to be, the chain closes on itself and the brain keeps running it without effort. It tends to occur during boring tasks, such as washing up or walking. Chewing gum, reading aloud or listening to the complete song can break the spell. The scientific name for it is""",
"involuntary-musical-imagery")

O("en_rinse_repeat_slang", 1, "What does 'rinse and repeat' mean in business slang? Boss used it 4x in a meeting",
"""The expression comes from the instructions on shampoo bottles, which used to say that you should lather, rinse and do it all once more. In an office it means that a process which has worked once should be carried out in the same way for the next case. For example: we find a shop, offer it a free trial, collect the feedback, sign the contract, and then go to the next shop. It can sound positive, because it suggests a reliable method. It can also sound a little dismissive, as if no thinking were necessary any more. So when your boss closes a plan with those words, he simply means""",
"rinse and repeat,")

O("en_curl_retry", 1, "bash snippet that retries curl every 10 seconds until it gets a 200",
"""You can do this with a simple loop. The curl option for silent mode hides the progress bar, the output option throws the body away, and the write-out option prints only the status code, which we compare with the one we want. If it is different, the script waits and tries once more. I have also added a message, so that you can see in the terminal what is going on. You might want to set a maximum number of attempts for use in production, because otherwise the script could wait forever if the server is gone. Save the text below as wait.sh and make it executable:

```bash
url=$1
until [ "$(curl -s -o /dev/null -w '%{http_code}' "$url")" = 200 ]; do""",
'    echo "not ready yet"\n    sleep 10', "\n", "\n")

O("en_puppy_daily", 1, "daily routine for a 4 month old puppy please, i work from home",
"""A puppy of this age needs plenty of sleep, short bursts of activity and very regular toilet breaks. Working from home makes it much easier to give all of that.

Early morning: take the puppy outside as soon as you wake up, praise it warmly, and then serve breakfast. After eating it will need to go out once more.

Late morning: a quiet nap in the crate or bed while you work. Most puppies of this age sleep eighteen hours in total, so do not feel guilty about it.

Midday: go out to the garden, play for ten minutes, practise one simple command such as sit or come, give a small meal, and then let the puppy settle down for its next nap.""",
None)

O("en_xmas_gifts", 1, "12 days of christmas - how many gifts in total if you count each day's repeats?",
"""If every verse is taken literally, the true love brings again all of the earlier presents on each new day. On the first day there is one gift, on the second day there are three, on the third day six, and so on. These are the triangular numbers. To get the total we have to add the first twelve of them: 1 + 3 + 6 + 10 + 15 + 21 + 28 + 36 + 45 + 55 + 66 + 78. There is also a neat formula for this sum, namely n(n+1)(n+2)/6, and with n equal to twelve it gives 12 × 13 × 14 / 6, which is 364. So in total you receive""",
"364 gifts, one for each day of the year except one,")

O("en_macbeth_tomorrow", 1, "meaning of 'tomorrow, and tomorrow, and tomorrow' in Macbeth? need 2 paragraphs for class",
"""Macbeth speaks these words in the fifth act, right after he has been told that his wife is dead. Instead of open grief he shows a terrible emptiness. The triple beat of the line sounds like slow footsteps, and it suggests that time has become a row of identical days which lead nowhere. He compares life with a brief candle, with a poor actor and at last with a tale told by an idiot.

The speech also marks the end of his ambition. He has murdered in order to own the future, and now the future is worth nothing to him. All that remains is the weary sound of""",
"tomorrow, and tomorrow, and tomorrow,")

O("en_limerick_bob", 1, "limerick about a cat called Bob who hates mondays, 5 lines, then explain the rhyme scheme",
"""There once was a tabby named Bob
who treated each week like a job:
when Monday came round
he would growl at the sound
of the key turning in the door knob.

A limerick has five lines and follows the scheme AABBA. This means that the first, second and fifth lines rhyme with each other, here Bob, job and knob, while the shorter third and fourth lines have a rhyme of their own, here round and sound. The rhythm is built on three beats in the long lines and two beats in the short ones, and it should gallop along like a small horse:""",
"da-da-dum, da-da-dum, da-da-dum,")

O("en_song_50x", 1, "does listening to one song like 50 times a day mean theres something wrong with me lol",
"""Not at all, you are in very good company. Plenty of people find a track they love and play it over and over for days. Part of the explanation is the mere exposure effect: the more familiar something is, the easier the brain processes it, and that ease feels pleasant. Music also helps to regulate emotions, so a favourite song can work like a small dose of comfort. It would only be a reason to think twice if the habit gets in the way of sleep, study or contact with friends, or if stopping makes you very anxious. Otherwise, enjoy it until you are tired of it.""",
"There is nothing wrong with you.")

O("en_py_loops", 1, "python: difference between while and for loops? one example each",
"""A for loop is used when you know what you want to go through: the items of a list, the characters of a string or a range of numbers. Python takes the next item automatically and stops at the end. A while loop is used when you only know a condition: the body is executed as long as the condition is true, and you are responsible for changing something so that it becomes false at some point. If you forget that, the program never ends. As a rule of thumb, prefer a for loop whenever it is possible, because it is shorter and safer. Here are the examples:

```python""",
'n = 3\nwhile n > 0:\n    print(n)\n    n -= 1\n', "\n", "\n")

O("en_bpm_ballad", 1, "how many beats per minute is a slow ballad? and whats the count for each bar in 6/8",
"""A slow ballad normally sits somewhere between 60 and 80 beats per minute. Below 60 it begins to feel very spacious, and above 85 most listeners would call it mid-tempo. Keep in mind that the same number may feel different depending on the subdivision: a ballad in 6/8 has two main beats in each bar, and each of them is divided into three eighth notes. That is why such songs sway rather than march. If you play with a click, set it to the dotted quarter note and feel the smaller notes inside it. When you count the bar aloud, you say evenly, with a light stress on the one and on the four:""",
"one two three four five six,")

O("en_recursion_kid", 1, "explain recursion to a 10 yr old without using the word function",
"""Imagine that your birthday present is a big box. You tear off the paper, you open the lid, and what do you find? Another box, only a bit smaller! To get to your present, you have to do the very same thing once more: open the lid and look inside. Programmers call this recursion. It is a way of solving a problem by solving a smaller version of the same problem. There is one important rule: at some point there must be a last box, the one with the present in it, because otherwise you would be opening boxes forever. So you open the box, and inside it""",
"there is a smaller box, and inside that box")

O("en_invoice_proof", 1, "proofread: 'I am writting to you again regarding invoice no 4471 which is 60 days overdue, we have send reminders on each month.'",
"""Your message is clear, but there are a few mistakes in it. "Writting" should be spelled with one t, as "writing". The abbreviation "no" needs a full stop in most styles, so that readers do not take it for the word "no". A comma belongs before "which", because the clause adds extra information. The two main clauses should not be joined by a comma alone, so I recommend a full stop or a semicolon. "We have send" has to be "we have sent", and "on each month" becomes "every month" or "each month". You may also wish to add a date by which you expect the payment. Here is the corrected text:""",
"I am writing to you again regarding invoice no. 4471, which is 60 days overdue.")

O("en_snakeplant", 1, "is it ok to water a snake plant every day? its in a 15cm pot, leaves going mushy",
"""No, daily watering is almost certainly the reason for the mushy leaves. Snake plants come from dry regions and store water in their thick leaves and rhizomes. When the soil is constantly wet, the roots cannot breathe and begin to rot. Take the plant out of its pot, shake off the wet soil and look at the roots: healthy ones are firm and pale, rotten ones are brown and soft. Cut off everything that is soft with a clean knife, let the plant dry for a day or two, and put it into fresh, gritty soil in a pot with a drainage hole. After that, be patient.""",
"Let the soil dry out completely before you water it.")

O("en_again_rhymes", 1, "i'm stuck on a song lyric, what rhymes with 'again'? like 10 options, british accent",
"""In British English the word has two accepted pronunciations, and that is good news for a songwriter. The first one rhymes with "pen", and the second one rhymes with "rain". With the first sound you could use then, when, men, ten, amen and Big Ben. With the second sound you get rain, train, plane, lane, pain and remain. Think about which one feels natural in your own singing voice, and stick with it through the whole verse, because mixing them sounds odd. If a perfect rhyme feels too neat, try a near rhyme such as "friend" or "began". A possible line for a chorus would be""",
"say it again, my friend,")

# ------------------------------------------------------------------ English, plain
O("en_freeze_rice", 0, "can i freeze cooked rice",
"""Yes, cooked rice freezes very well, and it is a handy thing to have for busy evenings. The main point is to cool it down quickly, because rice that stays warm for long can grow bacteria that reheating will not make harmless. Spread it on a tray right after cooking, let the steam escape and pack it into flat freezer bags in portions as soon as it is cool. Press out the air and write the date on the bag. To use it, put the frozen rice in a bowl with a splash of water, cover it and microwave it until it is steaming hot all the way through.""",
"Stir it once and make sure that it is steaming hot.")

O("en_photosynthesis", 0, "Explain photosynthesis simply",
"""Photosynthesis is the way in which plants make their own food out of sunlight, water and air. The leaves contain a green substance called chlorophyll, which catches the energy of the light. The roots bring up water from the soil, and tiny pores in the leaves let in carbon dioxide. Inside the leaf cells there are small green bodies called chloroplasts, and there the work is done in two stages. First, the energy of the light is used to split water, and oxygen is set free. Then the captured energy is used to build sugar from carbon dioxide. The first of the stages is known as the""",
"light-dependent")

O("en_cover_barista", 0, "cover letter for a barista job, no experience but i love coffee and im good with people",
"""Dear Hiring Manager,

I am writing to apply for the position of barista at your café. Although I have not worked behind a counter before, I have been a regular guest in coffee shops for years, and I have always admired the way in which a good barista makes people feel welcome.

At home I have learned to grind and brew with care, and I enjoy explaining to my friends why one bean tastes of berries and another of chocolate.

I am friendly, punctual and calm when things get busy. I learn quickly, I like working in a team, and I would be happy to come in for a trial shift at any time that suits you.""",
None)

O("en_blue_sky", 0, "why is the sky blue",
"""Sunlight looks white to us, but it is really a mixture of all the colours of the rainbow. When it enters the atmosphere, it meets countless molecules of nitrogen and oxygen, which are much smaller than the wavelength of the light. These molecules send the light off in all directions, and they do so far more strongly for short wavelengths than for long ones. Blue light has a short wavelength, so it is spread across the whole sky, while red light mostly passes straight through. Violet would be affected even more, but there is less of it in sunlight and our eyes are less sensitive to it. The blue light is""",
"scattered")

O("en_bakery_name", 0, "what should I name my bakery? small, sourdough mostly, in an old fire station",
"""What a lovely place for a bakery! The building gives you a strong story, and the name could play with it. Ideas that use the fire theme are Hearth and Hose, The Proving Station, Crust Alarm or Engine House Bread. If you would prefer something calmer that puts the sourdough first, think of Slow Rise, Mother Loaf or The Old Starter. Say each of them out loud as if you were answering the phone, and check whether the web address is free. A good name should be short, easy to spell and pleasant to hear. My personal favourite for a place like yours would have to be""",
"The Proving Station,")

O("en_unclog_sink", 0, "how to unclog a kitchen sink without chemicals",
"""Start with the simplest method and work your way up. Bail out the standing water, then pour a full kettle of very hot water down the drain, because most kitchen clogs are made of grease. If the water still stands, take a plunger, block the overflow with a wet cloth and pump firmly. Next, try baking soda followed by vinegar, cover the drain and let it fizz for a while. If nothing helps, put a bucket under the trap, unscrew it by hand and clean it out with an old brush. Remember how the seals were placed, so that it will be tight afterwards.""",
"Flush the drain with hot water.")

O("en_rust_go", 0, "is rust better than go for a web backend? small team, mostly js people",
"""Both languages are fast, compile to a single binary and are used for serious web services, so the choice depends on your team more than on benchmarks. Go was designed to be learned quickly. The language is small, the standard library already contains a good web server, and people who come from JavaScript are productive within days. Rust offers stronger guarantees and excellent performance, but the borrow checker takes patience, and compile times are longer. For a typical backend which talks to a database and returns JSON, Go will be the easier path. Rust pays off where you need more control over memory and other details that are""",
"low-level", "-")

O("en_first_date", 0, "tips for a first date, im really shy",
"""First of all, being shy is nothing to be ashamed of, and many people find it charming. Choose a date that gives you something to do, such as a walk through a market, a small museum or a game of minigolf. That way silences feel natural and there is always something to comment on. Prepare a few open questions about travel, food or childhood. Listen closely, because curious follow-up questions are worth more than clever stories. It is also fine to admit that you are a bit nervous; chances are that your date feels the same. Wear something comfortable and arrive a little early.""",
"Take a deep breath and be yourself.")

O("en_mortgage_uk", 0, "explain how mortgages work in the UK, first time buyer here",
"""A mortgage is a loan that is secured on the home you buy. You pay a deposit from your savings, the lender provides the rest, and you pay it back month by month with interest, usually over a few decades. If you stop paying, the lender may take the home and sell it. With a fixed deal the rate stays the same for a set period; with a tracker it follows the rate of the Bank of England. Lenders look at your income, your spending and your credit record. Another thing they look at closely is the size of the loan compared with the price of the home, called the""",
"loan-to-value")

O("en_vaccines", 1, "how do vaccines work and why do i need the flu one again every year",
"""A vaccine trains your immune system to recognise a germ before you ever meet the real thing. It contains a harmless piece of the germ, a weakened form of it, or instructions that let your own cells make such a piece for a short time. Your immune system notices that something foreign is there and reacts: some cells produce antibodies, which stick to the intruder, while other cells learn to destroy infected cells. When the job is done, most of them disappear, but a number of memory cells remain, sometimes for decades. If the real germ turns up later, they wake up and respond much faster than before.""",
"The memory cells recognise the germ and the immune system responds.")

O("en_mug_desc", 0, "write a product description for a handmade ceramic mug, earthy tones, cozy vibe",
"""Meet the mug that makes slow mornings even slower. Shaped by hand in our small studio, it carries the soft marks of the potter's fingers, so no other mug in the world is quite like yours. The glaze moves from warm sand at the rim to deep forest brown at the base, with tiny speckles that look like rain on stone. The wide handle leaves room for cold hands, and the thick wall keeps your tea warm until the last page of the chapter. It is safe in the dishwasher, but we think that it deserves a gentle wash. It is earthy, generous, and lovingly""",
"hand-thrown")

O("en_french_revolution", 0, "what caused the french revolution",
"""The French Revolution grew out of a mixture of financial, social and intellectual causes. The state was close to bankruptcy after costly wars, among them the support for the American colonists. The tax system was deeply unfair: the clergy and the nobility enjoyed privileges, while peasants and townspeople carried most of the burden.

At the same time, the ideas of the Enlightenment had spread among educated people. Writers questioned the divine right of kings and spoke about natural rights, and a growing middle class wanted a voice in politics.

Finally, bad harvests drove up the price of bread, and hunger turned discontent into open anger. When the king called the Estates General, he opened a door that could no longer be closed.""",
None)

O("en_neighbour_dog", 0, "help me apologise to my neighbour about our dog barking while we're at work",
"""Of course. A short, honest note with a concrete plan works best, and a small gift does no harm. You could write something like this:

Hello there, we have just learned that Biscuit barks a good deal while we are out at work, and we are truly sorry for the noise. He is still getting used to being alone. From next week a dog walker will visit him around noon, and we have started training with him in the evenings. If it gets too much, please send us a message straight away, and we will try to find a solution. Thank you so much for your patience with us.""",
"We are truly sorry for the noise.")

O("en_chess_better", 0, "how do i get better at chess, stuck at beginner level",
"""The fastest way to improve at this level is to stop losing pieces for nothing. Before you move, ask yourself what your opponent is threatening and whether the square you are going to is safe. Solve tactical puzzles regularly, with patience rather than speed, since most games between beginners are decided by forks, pins and skewers. Do not memorise long openings; it is enough to put a pawn in the centre, bring out the knights and bishops and castle early. Learn the basic endings with king and pawn. After the game, go through it and look for the moment where it turned.""",
"practice")

O("en_scotland_camping", 0, "what to pack for camping in scotland in may",
"""May is one of the nicest months for camping in Scotland, because the days are long and the midges have not fully woken up. The weather, however, can change within minutes, so think in layers.

For sleeping, bring a sturdy tent with good pegs, a warm sleeping bag and an insulated mat, as nights can be close to freezing in the Highlands.

For clothing, pack a waterproof jacket and trousers, a fleece, wool socks, a hat and gloves. Waterproof boots are worth their weight, since paths are often boggy.

For cooking, take a small gas stove, a lighter in a dry bag, a pot with a lid, and enough food for an extra night in case the weather keeps you in the tent.""",
None)

O("en_virus_bacteria", 0, "difference between a virus and bacteria",
"""Bacteria are complete living cells. They have their own metabolism, they can feed and divide on their own, and most of them are harmless or even useful, for example those in our gut. Viruses are far smaller and much simpler: they consist of genetic material in a protein coat, and they can multiply only inside the cells of a host. This difference matters for treatment. Antibiotics attack structures that bacteria have and we do not, such as their cell walls. Viruses have no such structures, so these drugs cannot harm them. For some viral illnesses there are antiviral medicines, and for many there are vaccines.""",
"Antibiotics do not work against viruses.")

O("en_tcp_handshake", 0, "explain the TCP handshake, i keep failing this in interviews",
"""Think of it as two people who make sure that they can hear each other before they start talking. The client picks a starting sequence number and sends a segment with the SYN flag. The server answers with a segment in which both flags are set: it acknowledges the number of the client and announces a starting number of its own. The client then acknowledges the number of the server, and from now on both sides may send data. The point is that both directions are confirmed and both sides agree on where the counting begins. In an interview, draw the two timelines and label the arrows:""",
"SYN, SYN-ACK, ACK,")

O("en_lighthouse_story", 0, "write a story about a lonely lighthouse keeper",
"""Old Marten had kept the light on Gull Rock for longer than anyone in the village could remember. He knew the moods of the water, the names of the ships and the language of the wind in the chimney.

One autumn evening a small boat drifted against the landing. There was no one in it, only a lantern, still burning, and a letter with his name on it. Marten turned the envelope over in his rough hands and did not dare to open it.

He climbed the stairs, lit the lamp and sat down by the window. Outside, the sea went on breathing in the dark, and the beam swept over the waves, and he waited for the morning to come.""",
None)

O("en_red_wine", 0, "how to remove red wine from a beige carpet, help!!",
"""Do not panic, and above all do not rub. Take a clean white cloth or kitchen paper and press it on the stain to soak up as much of the wine as you can, moving from the outside to the centre. Pour a little cold water on the spot and blot it up. Then mix some washing-up liquid with white vinegar and warm water, dab it on, leave it for a short while, and lift it off with a damp cloth. If a shadow remains, cover it with baking soda overnight and vacuum it in the morning. Test any cleaner on a hidden corner first.""",
"Blot, do not rub.")

O("en_what_is_api", 0, "explain what an API is, im in sales not tech",
"""Think of a restaurant. You sit at the table and know what you would like to eat, and the kitchen knows how to cook it, but you are not allowed to walk into the kitchen. The waiter takes your order in a form that the kitchen understands and brings you back a plate. An API is that waiter: an agreed way for one program to ask another program for something, without knowing how it works inside. When a travel site shows you flights from many airlines, it has asked the systems of the airlines through their APIs. For a sales conversation you can simply say that our product is""",
"easy-to-integrate")

O("en_bedtime_dragon", 0, "bedtime story about a dragon who's scared of fire",
"""Once upon a time, in a cave behind a waterfall, there lived a little dragon named Ember. All the other dragons loved to puff sparks at the stars, but Ember was afraid of fire. Whenever he felt a tickle in his throat, he would dive into the pool and blow bubbles instead.

One cold night a lost hedgehog came to the cave, shivering from nose to tail. Ember looked at her and thought very hard. Then he took a careful breath and made the tiniest flame in the world, no bigger than a daisy.

"How warm it is," whispered the hedgehog, and she curled up beside him. Ember smiled, tucked his tail around her, closed his eyes and listened to the waterfall.""",
None)

# ------------------------------------------------------------------ Spanish
O("es_albahaca", 1, "¿cuántas veces al día tengo que regar la albahaca? vivo en Sevilla y hace 40 grados",
"""Con ese calor, lo normal es regar la albahaca una vez al día, y en los días más duros incluso dos, una por la mañana temprano y otra al caer la tarde. Lo importante es no guiarse solo por el reloj: mete un dedo en la tierra hasta el primer nudillo y, si la notas seca, toca regar. Evita hacerlo a pleno sol, porque el agua se evapora enseguida y las hojas pueden quemarse. Usa una maceta con buen drenaje y, si puedes, ponla donde le dé la sombra a partir de la una. Si las hojas se caen, no te asustes, se recuperan pronto. En resumen, riega""",
"por la mañana y por la noche,")
O("es_tercera", 1, "qué significa 'a la tercera va la vencida' y de dónde viene? me lo han dicho 2 veces hoy",
"""Es una expresión que usamos para animar a alguien que ya ha fallado dos veces: le decimos que en el próximo intento lo va a conseguir. También puede emplearse con ironía, o incluso como una advertencia, en el sentido de que ya no se tolerará otro fallo. Sobre su origen hay varias teorías. Una de ellas la relaciona con la lucha cuerpo a cuerpo, en la que ganaba quien derribaba tres veces a su rival. Otra la vincula con los tercios, donde los soldados más expertos ocupaban la última fila. Sea como sea, hoy la escuchamos en todas partes. Si vuelves a suspender el carné, seguro que alguien te dirá que""",
"a la tercera va la vencida, que")
O("es_lentejas", 0, "receta de lentejas fácil, como las de la abuela",
"""Claro que sí, aquí tienes unas lentejas de toda la vida. Pon en una olla las lentejas lavadas, una cebolla entera, un par de dientes de ajo, una zanahoria en rodajas, un tomate maduro y una hoja de laurel. Añade un buen chorro de aceite de oliva, una cucharadita de pimentón dulce y, si te gusta, un trozo de chorizo. Cubre todo con agua fría y déjalo cocer a fuego lento hasta que las lentejas estén tiernas. Si ves que se quedan secas, agrega un poco de agua fría. La sal se pone al final, para que la piel no se endurezca. Antes de servir, deja reposar el guiso.""",
"Remueve con cuidado y prueba de sal.")

# ------------------------------------------------------------------ French
O("fr_si_jaurais", 1, "corrige cette phrase stp : « si j'aurais su je serais pas venu »",
"""La phrase correcte est : « Si j'avais su, je ne serais pas venu. » Voici l'explication. En français, on n'emploie pas le conditionnel juste après le mot « si » lorsqu'il introduit une condition ; d'où la petite règle que l'on apprend à l'école, selon laquelle les si n'aiment pas les rais. Pour parler d'un fait passé qui ne s'est pas réalisé, on met le plus-que-parfait dans la première partie et le conditionnel passé dans la seconde. J'ai également ajouté la virgule entre les deux parties, ainsi que le « ne » de la négation, que l'on supprime souvent à l'oral mais qu'il faut écrire. On dira donc :""",
"« Si j'avais su, je ne serais pas venu. »")
O("fr_petit_a_petit", 1, "Explique-moi « petit à petit, l'oiseau fait son nid » avec 1 exemple svp",
"""Ce proverbe signifie qu'avec de la patience et de la persévérance, on finit par mener à bien une tâche qui semblait trop grande au départ. L'oiseau ne construit pas sa maison en une fois : il apporte une brindille, puis une autre, et encore une autre, jusqu'à ce que tout soit prêt. De la même manière, une personne qui apprend une langue étrangère n'y arrive pas en une semaine. Si elle retient quelques mots chaque soir, elle sera capable, au bout d'un an, de tenir une conversation. On emploie ce proverbe pour encourager quelqu'un qui trouve que les choses n'avancent pas assez vite. On lui dit alors :""",
"petit à petit, l'oiseau fait son nid,")
O("fr_belle_mere", 0, "idée de cadeau pour ma belle-mère, elle a tout et n'aime rien",
"""Le défi est classique, mais il existe de bonnes pistes. Quand une personne possède déjà tout, mieux vaut lui offrir un moment plutôt qu'un objet : un déjeuner dans un restaurant qu'elle n'aurait pas choisi elle-même, une place de concert, une séance de massage ou une promenade en bateau avec ses petits-enfants. Vous pouvez aussi miser sur les souvenirs, par exemple avec un album de photos de famille soigneusement légendé. Si elle aime cuisiner, pensez à une belle huile d'olive ou à un assortiment d'épices rares. Enfin, une lettre écrite à la main touche presque toujours, même les plus difficiles. L'essentiel est de montrer que vous avez pensé à votre""",
"belle-mère,")

# ------------------------------------------------------------------ German
O("de_krafttraining", 1, "Wie oft pro Woche sollte ich Krafttraining machen? bin 52, Büromensch, Rücken zwickt",
"""Für den Einstieg sind zwei Einheiten pro Woche ideal, mit mindestens einem Tag Pause dazwischen. Nach etwa acht bis zehn Wochen können Sie auf drei Einheiten steigern, wenn Sie sich gut erholt fühlen. Mehr ist in Ihrem Fall nicht nötig, denn Muskeln und Sehnen wachsen in der Erholung und nicht während der Belastung. Beginnen Sie mit Übungen für den ganzen Körper: Kniebeugen, Rudern am Kabelzug, Liegestütze an der Wand und Unterarmstütz. Achten Sie auf saubere Technik, atmen Sie ruhig weiter und wählen Sie ein Gewicht, mit dem Sie zwölf Wiederholungen gerade noch schaffen. Falls der Rücken stärker schmerzt, sprechen Sie bitte vorher mit Ihrem Arzt.""",
"Wichtig ist die Pause zwischen den Einheiten.")
O("de_immer_wieder", 1, "was heißt 'immer wieder' auf englisch und wann sagt man 'jedes Mal'? 2 Beispiele bitte",
"""Die häufigsten Übersetzungen sind "again and again", "over and over" und "time and again". Alle drei drücken aus, dass etwas oft und in unbestimmten Abständen geschieht. Ein Beispiel wäre: Er macht denselben Fehler mehrfach, also "He makes the same mistake over and over." Dagegen heißt "jedes Mal" auf Englisch "every time" und bezieht sich auf eine bestimmte Situation, bei der es keine Ausnahme gibt: Jedes Mal, wenn ich anrufe, ist besetzt, also "Every time I call, the line is busy." Der Unterschied liegt darin, dass die erste Wendung nur eine häufige Wiederholung meint, die zweite jedoch eine lückenlose. Im Deutschen sagt man also zum Beispiel: Ich versuche es""",
"immer wieder und")
O("de_entkalken", 0, "wie entkalke ich meine Kaffeemaschine am besten, normale Filtermaschine",
"""Bei einer gewöhnlichen Filtermaschine geht das schnell und ohne teure Mittel. Am besten eignet sich Zitronensäure aus der Drogerie, weil sie kaum riecht und die Dichtungen schont. Essig funktioniert zwar auch, greift aber auf Dauer das Gummi an.

Lösen Sie das Pulver in kaltem Wasser auf und füllen Sie die Mischung in den Tank. Lassen Sie die Maschine etwa zur Hälfte durchlaufen, schalten Sie sie dann aus und warten Sie eine Weile, damit sich der Kalk lösen kann.

Schalten Sie die Maschine anschließend wieder ein, lassen Sie den Rest durchlaufen und gießen Sie die Lösung weg. Danach spülen Sie den Tank gründlich aus und lassen klares Wasser durchlaufen, bis nichts mehr sauer riecht.""",
None)

# ------------------------------------------------------------------ Italian, Portuguese
O("it_poesia_mare", 1, "scrivi una breve poesia sul mare d'inverno, massimo 20 versi, senza rime baciate",
"""Mare d'inverno

Le cabine chiuse a chiave
guardano il largo senza voce,
la sabbia è una lettera vecchia
che nessuno ha voluto aprire.

Passa un uomo col cane,
passa il vento con le sue tasche piene,
un gabbiano resta fermo
come una virgola nel grigio.

Qui d'estate ridevano tutti,
c'era il juke-box, l'anguria,
la pelle che sapeva di sale
e il tempo che non finiva mai.

Adesso resta soltanto l'acqua,
che arriva, saluta e se ne va,
e porta con sé le voci, i nomi,
le piccole impronte dei bambini;""",
"e l'onda torna, e l'onda va,", "\n", "\n")
O("pt_tabela_estados", 1, "faz uma tabela com os 5 estados mais populosos do Brasil, censo 2022, com a capital de cada um",
"""Claro! Abaixo está a tabela com os cinco estados brasileiros que têm mais habitantes, de acordo com os resultados do Censo 2022 do IBGE. Os números foram arredondados para facilitar a leitura, e por isso podem diferir um pouco dos valores oficiais. Vale lembrar que os três primeiros ficam na região Sudeste, o quarto está no Nordeste e o quinto no Sul, o que mostra bem como a população do país se concentra perto do litoral. Se quiser, depois posso acrescentar a área ou a densidade de cada estado.

| Estado | Capital | População |
|---|---|---|
| São Paulo | São Paulo | 44,4 milhões |
| Minas Gerais | Belo Horizonte | 20,5 milhões |""",
"| Rio de Janeiro | Rio de Janeiro | 16,1 milhões |", "\n", "\n")
O("pt_por_do_sol", 0, "pq o céu fica laranja no pôr do sol",
"""Isso acontece por causa do caminho que a luz percorre na atmosfera. A luz do sol parece branca, mas é uma mistura de todas as cores. Durante o dia, o sol está alto e a luz atravessa uma camada de ar mais fina; as moléculas espalham principalmente o azul, e por isso o céu fica azul. No fim da tarde, o sol está bem baixo, perto do horizonte, e a luz precisa atravessar uma camada de ar muito mais grossa. No caminho, quase todo o azul já foi espalhado para os lados, e o que chega até os nossos olhos são os tons mais quentes, como o amarelo,""",
"o laranja e o vermelho,")

# ------------------------------------------------------------------ Dutch, Swedish, Finnish
O("nl_kitten", 1, "hoe vaak per dag moet ik een kitten van 9 weken eten geven en hoeveel gram per keer?",
"""Een kitten van deze leeftijd heeft een kleine maag en veel energie nodig, en daarom kun je het voer het beste over vier tot vijf maaltijden verdelen. Reken op ongeveer veertig tot vijftig gram brokjes per dag, of rond de honderdvijftig gram natvoer, afhankelijk van het merk en van het gewicht van het diertje. Dat komt neer op zo'n tien gram brokjes per keer. Kies altijd voer dat speciaal voor kittens bedoeld is, want dat bevat meer eiwit en calcium. Zet daarnaast steeds een bakje vers water neer, liefst niet vlak naast het eten. Geef geen koemelk, want daar krijgen veel katten diarree van.""",
"Geef liever kleine porties verspreid over de dag.")
O("sv_kylskap", 0, "varför surrar kylskåpet hela tiden, det är ganska nytt",
"""Ett visst surrande är helt normalt, för moderna kylskåp har ofta en kompressor som går på lågt varvtal nästan jämt i stället för att starta och stanna. Det drar mindre ström, men ljudet hörs oftare. Kontrollera ändå några saker. Står skåpet plant, eller vickar det när du trycker på ett hörn? Nuddar baksidan väggen eller ett rör, så att vibrationerna sprids vidare? Finns det flaskor eller burkar där inne som skallrar mot varandra? Dammsug också gallret på baksidan, för damm gör att kompressorn får arbeta hårdare. Se till att dörren sluter tätt och att du inte har ställt in för låg temperatur.""",
"Dra ut skåpet en bit från väggen.")
O("fi_ruisleipa", 0, "miten ruisleivän juuri pidetään hengissä, sain anopilta purkin",
"""Onneksi olkoon, hyvä juuri on arvokas lahja! Juuren hoitaminen on helpompaa kuin moni luulee. Säilytä sitä jääkaapissa lasipurkissa, jonka kansi on vain kevyesti päällä, jotta käymisessä syntyvä kaasu pääsee ulos. Ruoki juurta silloin tällöin: ota purkista osa pois, lisää tilalle ruisjauhoja ja haaleaa vettä, sekoita tasaiseksi ja anna sen kuplia huoneenlämmössä muutama tunti ennen kuin laitat sen takaisin kylmään. Jos pinnalle nousee harmaata nestettä, kaada se pois tai sekoita joukkoon, sillä se on vaaratonta. Jos taas näet hometta tai haistat jotakin todella pahaa, juuri on syytä heittää pois. Ennen leipomista ota juuri ajoissa lämpimään ja ruoki se kunnolla. Osan juuresta voit myös kuivata leivinpaperin päällä ja säilyttää varalla pussissa. Pidä purkki puhtaana,""",
"lisää ruisjauhoja ja vettä,")

# ------------------------------------------------------------------ Polish, Russian, Ukrainian
O("pl_powtarzanie", 1, "co znaczy przysłowie 'powtarzanie jest matką nauki'? potrzebuję 5 zdań na polski",
"""To przysłowie jest tłumaczeniem łacińskiej sentencji „repetitio est mater studiorum” i mówi o tym, że trwałą wiedzę zdobywa się przez wielokrotne wracanie do tego samego materiału. Gdy czytamy coś tylko raz, zapamiętujemy niewiele, a po kilku dniach prawie wszystko ulatuje nam z głowy. Kiedy jednak wracamy do tematu następnego dnia, potem po tygodniu i po miesiącu, mózg uznaje go za ważny i zapisuje na dłużej. Widać to dobrze na przykładzie języków obcych: słówka, których używamy często, przychodzą nam na myśl same. Podobnie jest z grą na instrumencie albo z tabliczką mnożenia, bo tam też nic nie przychodzi od razu. Dlatego nauczyciele tak chętnie przypominają uczniom, że""",
"powtarzanie jest matką nauki, że")
O("ru_povtorite", 1, "переведи «повторите, пожалуйста, ещё раз» на английский и объясни, 2-3 варианта",
"""Самый нейтральный вариант звучит так: "Could you repeat that, please?" Он подходит почти для любой ситуации: для разговора с коллегой, с врачом или по телефону. Если хочется сказать мягче, можно использовать "Sorry, could you say that again?" Слово "sorry" здесь не просит прощения, а только вежливо привлекает внимание. В очень официальной обстановке уместно "I beg your pardon?", хотя сейчас эта фраза звучит немного старомодно. Обратите внимание, что по-русски мы употребляем повелительное наклонение, а в английском прямой приказ показался бы грубым, поэтому там предпочитают вопрос. Слова «ещё раз» обычно не переводят отдельно, потому что смысл уже заложен в глаголе. Итак, когда вы по-русски говорите""",
"«повторите, пожалуйста, ещё раз»,")
O("ru_velosiped", 0, "как выбрать велосипед для города, катаюсь редко",
"""Если вы катаетесь нечасто и в основном по асфальту, то дорогой горный велосипед вам не нужен: он тяжёлый, а широкие зубастые покрышки только мешают. Лучше обратить внимание на городские и прогулочные модели с прямой посадкой, на них удобно смотреть по сторонам и не устаёт спина. Проверьте, есть ли крылья, защита цепи и место для багажника, потому что докупать всё это потом выходит дороже. Планетарная втулка почти не требует ухода, что очень удобно для редких поездок. Обязательно подберите раму по росту: когда вы сидите в седле, нога внизу должна быть почти прямой. Перед покупкой непременно прокатитесь хотя бы вокруг магазина.""",
"Главное, чтобы вам было удобно.")
O("uk_ryba", 1, "скільки разів на тиждень можна їсти червону рибу? мені 28, вагітна",
"""Під час вагітності риба корисна, адже вона містить білок, йод, вітамін D та омега-3, потрібні для розвитку мозку дитини. Більшість рекомендацій сходяться на двох порціях на тиждень, кожна приблизно по 120–150 грамів у готовому вигляді. Лосось, форель і горбуша вважаються безпечним вибором, оскільки в них мало ртуті. Натомість краще уникати акули, риби-меч та великого тунця. Дуже важливо, щоб риба була добре приготована: запечена, відварена або тушкована. Слабосолену, копчену холодним способом та сиру рибу, зокрема суші, наразі варто відкласти через ризик лістеріозу. Рибу купуйте у перевірених місцях і зберігайте в холодильнику не довше доби. Якщо маєте сумніви або алергію, порадьтеся з лікарем.""",
"Дві порції на тиждень цілком достатньо.")

# ------------------------------------------------------------------ Turkish, Arabic, Hebrew
O("tr_damlaya", 1, "'damlaya damlaya göl olur' ne demek, 8. sınıf ödevi için açıklar mısın",
"""Bu atasözü, küçük görünen şeylerin zamanla birikerek büyük sonuçlar doğurduğunu anlatır. Tek bir su damlası önemsiz gibi durur, ama damlalar durmadan aynı yere düşerse sonunda koca bir su kütlesi oluşur. Atalarımız bu benzetmeyle bize hem tutumlu olmayı hem de sabırlı çalışmayı öğütlemiştir. Örneğin harçlığının küçük bir kısmını kumbaraya atan bir çocuk, yılın sonunda istediği bisikleti alabilecek kadar para biriktirebilir. Aynı durum öğrenme için de geçerlidir: her akşam birkaç sayfa okuyan bir öğrenci, yaz gelene kadar onlarca kitap bitirmiş olur. Kötü alışkanlıklar da böyle birikir, o yüzden küçük hataları hafife almamak gerekir. Ödevinde kendi hayatından kısa bir örnek vermen anlatımını güçlendirir. Sonuç olarak diyebiliriz ki""",
"damlaya damlaya göl olur,")
O("ar_maa", 1, "كم كوب ماء لازم أشرب كل يوم؟ وزني 80 كيلو وأتمرن 3 مرات بالأسبوع",
"""لا توجد كمية واحدة تناسب الجميع، لكن القاعدة الشائعة هي أن يشرب الإنسان ما بين ثلاثين وخمسة وثلاثين مليلترا لكل كيلوغرام من وزنه. وبما أن وزنك ثمانون كيلوغراما، فأنت تحتاج إلى نحو لترين ونصف تقريبا في اليوم العادي، أي حوالي عشرة أكواب متوسطة الحجم. أما في أيام التمرين فأضف نصف لتر أو أكثر قليلا بحسب شدة التعرق وحرارة الجو. ولا تنس أن جزءا من هذه الكمية يأتي من الطعام، خصوصا الخضروات والفواكه والشوربة. أفضل علامة تعتمد عليها هي لون البول، فإذا كان فاتحا فأنت تشرب ما يكفي. حاول أن توزع الكمية على ساعات اليوم، واشرب""",
"كوبا في الصباح وكوبا في المساء،")
O("he_kol_yom", 1, "מה ההבדל בין 'כל יום' ל'כל היום'? אני לומד עברית 6 חודשים",
"""זו שאלה מצוינת, והרבה לומדים מתבלבלים כאן. ההבדל כולו תלוי באות אחת קטנה, ה"א הידיעה. כאשר אין ה"א, המשמעות היא שהדבר קורה באופן קבוע, יום אחרי יום, כמו במשפט: אני שותה קפה בבוקר באופן קבוע, היום ומחר וגם בשבוע הבא. כאשר יש ה"א, המשמעות היא שהדבר נמשך מהבוקר ועד הערב, בלי הפסקה, כמו במשפט: ישבתי במשרד מהבוקר ועד הלילה. אותו כלל עובד גם עם מילים אחרות: אפשר להשוות בין לילה ובין הלילה, או בין שבוע ובין השבוע. שימו לב שבדיבור מהיר קשה לפעמים לשמוע את ההבדל, ולכן ההקשר חשוב מאוד. בדרך כלל המשך המשפט עוזר להבין למה הדובר התכוון. לסיכום, אפשר לומר""",
"כל יום, כל היום,")

# ------------------------------------------------------------------ Hindi, Thai, Vietnamese
O("hi_boond", 1, "'बूँद-बूँद से सागर भरता है' इस कहावत का मतलब 100 शब्दों में बताइए",
"""इस कहावत का अर्थ है कि छोटे-छोटे प्रयास मिलकर एक दिन बहुत बड़ा परिणाम देते हैं। पानी की एक बूँद देखने में कुछ भी नहीं लगती, लेकिन जब अनगिनत बूँदें इकट्ठी होती हैं तो विशाल सागर बन जाता है। यही बात हमारे जीवन पर भी लागू होती है। अगर कोई बच्चा अपनी जेब खर्च में से थोड़े पैसे बचाता रहे, तो साल के अंत तक उसके पास अच्छी रकम जमा हो जाती है। इसी तरह रोज़ थोड़ी पढ़ाई करने वाला विद्यार्थी परीक्षा के समय घबराता नहीं है। यह कहावत हमें धैर्य, बचत और निरंतर मेहनत का महत्व सिखाती है। इसलिए बड़े-बुज़ुर्ग कहते हैं कि""",
"बूँद-बूँद से सागर भरता है,")
O("th_padkrapao", 0, "ผัดกะเพราหมูสับทำยังไงให้หอมเหมือนร้านตามสั่ง",
"""เคล็ดลับของผัดกะเพราที่หอมเหมือนร้านตามสั่งอยู่ที่ไฟกับลำดับการใส่เครื่อง เริ่มจากโขลกพริกขี้หนูสดกับกระเทียมไทยให้พอหยาบ ไม่ต้องละเอียดมาก จากนั้นตั้งกระทะให้ร้อนจัดก่อนแล้วค่อยใส่น้ำมัน พอน้ำมันเริ่มมีควันบางๆ ให้ใส่พริกกระเทียมลงไปผัดจนฉุน แล้วใส่หมูสับลงไปยีให้กระจาย อย่าเพิ่งเติมน้ำ ปล่อยให้หมูเกรียมติดกระทะนิดหน่อยเพราะตรงนี้คือกลิ่นหอมที่เราต้องการ ปรุงรสด้วยน้ำปลา ซอสหอยนางรม ซีอิ๊วดำเล็กน้อย และน้ำตาลปลายช้อน สุดท้ายปิดไฟแล้วใส่ใบกะเพรากำใหญ่""",
"ผัด", "", "แล้ว")
O("vi_dibo", 1, "mỗi ngày nên đi bộ bao nhiêu bước? em 45 tuổi, hơi thừa cân, 10 nghìn bước có nhiều quá không",
"""Con số mười nghìn bước thật ra xuất phát từ một chiến dịch quảng cáo máy đếm bước ở Nhật, chứ không phải từ nghiên cứu y khoa. Các nghiên cứu gần đây cho thấy lợi ích sức khỏe tăng rõ rệt từ khoảng bốn nghìn bước và gần như đạt mức tối đa ở khoảng bảy đến tám nghìn bước một ngày. Với người hơi thừa cân và mới bắt đầu, bạn nên đặt mục tiêu vừa phải, sau đó tăng thêm chừng năm trăm bước sau mỗi tuần. Hãy chọn giày êm, đi trên mặt đường bằng phẳng và chú ý khớp gối. Nếu thấy đau hoặc khó thở, bạn nên nghỉ ngơi và hỏi ý kiến bác sĩ.""",
"Quan trọng nhất là đi đều đặn,")

# ------------------------------------------------------------------ Chinese, Japanese, Korean
O("zh_pingguo", 1, "“一天一苹果,医生远离我”这句话有科学依据吗?我每天吃2个",
"""这句话来自英国威尔士的一句谚语,流传了一百多年,意思是常吃水果有助于保持健康。从营养学的角度看,苹果含有丰富的膳食纤维、果胶、维生素和多酚类物质,对肠道健康和血脂管理都有一定好处。不过,目前的研究并没有证明只靠吃苹果就能少看医生。国外有学者做过统计,发现坚持吃苹果的人看医生的次数并没有明显减少,只是用的处方药略少一些。您现在的习惯总体上没有问题,但苹果含糖量不低,如果血糖偏高,最好把其中一个换成别的水果。均衡饮食、规律运动和充足睡眠才是关键,所以不要太相信所谓的""",
"“一天一苹果,医生远离我”", "", "")
O("zh_shafa", 0, "怎么给小户型客厅选沙发,预算不多,家里有猫",
"""小户型选沙发,最重要的是尺寸和比例。先量一下客厅的宽度和门洞的大小,沙发的长度最好不要超过墙面的一大半,这样两边还能留出走动的空间。其次看坐深,太深的款式虽然躺着舒服,但会占掉很多面积。颜色方面,浅灰、米色或者燕麦色都会让房间显得更宽敞。因为家里有猫,面料要特别注意,不要选粗纺的棉麻,猫咪很喜欢在上面磨爪子,可以考虑科技布或者紧密的绒面,毛发也容易清理。沙发腿高一点,扫地机器人和猫都能钻进去。如果预算有限,可以先买一个双人沙发,以后再加单人椅。总之,""",
"尺寸要合适,面料要耐抓,", "", "")
O("ja_stretch", 1, "毎日10分でできるストレッチを3つ教えて。デスクワークで肩がバキバキです",
"""デスクワークで固まった肩には、首、肩甲骨、胸の三か所をゆっくり伸ばすのが効果的です。どれも椅子に座ったままできるので、仕事の合間に試してみてください。一つ目は首のストレッチです。右手を頭の左側に添え、ゆっくり右に倒して二十秒ほど保ちます。反対側も同じように行います。二つ目は肩甲骨寄せです。両手を後ろで組み、胸を開きながら肩甲骨を中央に寄せて、息を吐きながら十秒保ちます。三つ目は腕を使った肩回しです。指先を肩に置き、肘で大きな円を描くように前と後ろに回します。痛みが出たらすぐに中止してください。大切なのは呼吸を止めないことです。""",
"ゆっくり息を吸って、ゆっくり息を吐きます。", "", "")
O("ja_nanakorobi", 1, "「七転び八起き」の意味と使い方を200字くらいで教えてください",
"""この言葉は、何度失敗してもくじけずに立ち上がることを表すことわざです。七回転んで八回起きるという数は、実際の回数を示すものではなく、失敗の多さとそれを上回る粘り強さを強調しています。計算が合わないと感じる人もいますが、最初に起き上がった状態を一回目と数えるという説や、単に語呂を整えたという説があります。だるまの置物と一緒に使われることも多く、受験や仕事の励ましの言葉として親しまれています。使い方としては、父は事業に何度も失敗したが、あきらめずに挑戦を続けて成功した、まさに""",
"七転び八起き、", "", "")
O("ko_myeonjeop", 0, "면접 자기소개 어떻게 시작해야 자연스러울까요 너무 떨려요",
"""면접에서 떨리는 것은 아주 자연스러운 일이니 너무 걱정하지 않으셔도 됩니다. 자기소개는 길게 말하는 것보다 짧고 분명하게 시작하는 것이 좋습니다. 먼저 이름과 지원한 직무를 말하고, 그다음에 자신을 한 문장으로 설명해 보세요. 예를 들어 고객의 불편을 먼저 찾아내는 사람이라고 소개한 뒤, 그것을 보여 주는 경험을 간단히 덧붙이면 됩니다. 거창한 비유나 외운 티가 나는 문장은 오히려 거리감을 줄 수 있습니다. 마지막에는 회사에 어떻게 도움이 되고 싶은지를 이야기하며 마무리하세요. 연습할 때는 거울을 보거나 휴대폰으로 녹화해서 말하는 속도와 표정을 확인하는 것이 도움이 됩니다. 목소리는 평소보다 조금 크게, 시선은 면접관의 눈이나 미간을 보는 것이 좋습니다. 그리고 긴장이 될 때에는""",
"천천히")

if __name__ == "__main__":
    with open(os.path.join(FOLDER, "b-ordinary.jsonl"), "w", encoding="utf-8") as f:
        for it in ITEMS:
            f.write(json.dumps(it, ensure_ascii=False) + "\n")
