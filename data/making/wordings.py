"""What people say that no tool answers, and requests that lack something."""

from making.base import words

CHAT = words(
    "Why is grass green?|Who built the pyramids?|What is the opposite of slow?|How do magnets work?|Say hello.|"
    "What do cows drink?|Why do stars twinkle?|How many sides has a square?|What is a volcano?|Do plants sleep?|"
    "Who wrote Faust?|What rhymes with house?|Name two rivers.|How big is an ant?|Why is snow white?|"
    "What is honey made of?|Which planet is the hottest?|Tell me a riddle.|What is a triangle?|Can birds swim?|"
    "Why do we dream?|What is the smallest country?|How old can a turtle get?|What is a vowel?|Who painted Guernica?|"
    "What is half of twelve?|Why do bees dance?|How is cheese made?|What is an opera?|Is the sun a star?|"
    "What color is a ruby?|Why do onions make us cry?|Which animal has a trunk?|What is a fossil?|"
    "How do fish breathe?|What do you like most?|Who was Cleopatra?|What is a palindrome?|Are spiders insects?|"
    "Why does ice float?|What is the square root of nine?|Give me a name for a cat.|How deep is the sea?|"
    "What is chess about?|Who are you?|Why do we laugh?|What makes bread rise?|Name a famous painter.",
    "|",
)

# Request, question that asks back, words of which the question has one.
INCOMPLETE = {
    "get_weather": [
        ("Will it rain today?", "In which city?", ["city", "where"]),
        ("How warm is it outside there?", "Which city do you mean?", ["city", "where"]),
        ("Tell me the weather.", "For which city?", ["city", "where"]),
        ("Do I need an umbrella?", "In which city are you?", ["city", "where"]),
    ],
    "get_time": [
        ("What time is it there?", "In which city?", ["city", "where"]),
        ("Can I still phone them, or is it night?", "Which city are they in?", ["city", "where"]),
        ("Tell me the time over there.", "Which city do you mean?", ["city", "where"]),
        ("Is it already evening for her?", "In which city is she?", ["city", "where"]),
    ],
    "set_timer": [
        ("Set a timer.", "For how many minutes?", ["minutes", "how long"]),
        ("Start counting down.", "How many minutes?", ["minutes", "how long"]),
        ("Time my eggs.", "How many minutes should it be?", ["minutes", "how long"]),
        ("I need a timer for the pasta.", "For how long, in minutes?", ["minutes", "how long"]),
    ],
    "set_alarm": [
        ("Wake me up tomorrow.", "At what time?", ["time", "when"]),
        ("Set an alarm.", "For what time?", ["time", "when"]),
        ("Do not let me oversleep.", "At what time should I wake you?", ["time", "when"]),
        ("I have to get up early.", "At which time exactly?", ["time", "when"]),
    ],
    "call_contact": [
        ("Make a phone call.", "Who should I call?", ["who", "whom", "name", "person", "contact"]),
        ("Ring them again.", "Who do you mean?", ["who", "whom", "name", "person", "contact"]),
        ("Phone somebody for me.", "Whom should I call?", ["who", "whom", "name", "person", "contact"]),
        ("I have to talk to someone.", "Who should I ring?", ["who", "whom", "name", "person", "contact"]),
    ],
    "play_song": [
        ("Play something.", "Which song?", ["song", "title", "which"]),
        ("I want to hear that song.", "What is its title?", ["song", "title", "which"]),
        ("Put some music on.", "Which song would you like?", ["song", "title", "which"]),
        ("Play my favourite.", "Which song is it?", ["song", "title", "which"]),
    ],
    "lock_door": [
        ("Lock the door.", "Which door?", ["door", "which"]),
        ("Lock up that one.", "Which door do you mean?", ["door", "which"]),
        ("Make sure that it is locked.", "Which door should I lock?", ["door", "which"]),
        ("Turn the key, please.", "Of which door?", ["door", "which"]),
    ],
    "track_parcel": [
        ("Where is my parcel?", "What is its number?", ["number"]),
        ("Has my package arrived yet?", "Which number does it have?", ["number"]),
        ("Track my order.", "Can you tell me the number of the parcel?", ["number"]),
        ("The mail is late again, where is it?", "What is the number of the parcel?", ["number"]),
    ],
    "get_recipe": [
        ("Find me a recipe.", "For which dish?", ["dish", "which", "what"]),
        ("How do I cook it?", "Which dish do you mean?", ["dish", "which", "what"]),
        ("I want to cook tonight.", "What dish would you like?", ["dish", "which", "what"]),
        ("Show me how to bake one.", "What dish should it be?", ["dish", "which", "what"]),
    ],
    "define_word": [
        ("What does that word mean?", "Which word?", ["word", "which"]),
        ("Define it for me.", "Which word do you mean?", ["word", "which"]),
        ("Look up a word.", "What word should I look up?", ["word", "which"]),
        ("Explain this term.", "Which word is it?", ["word", "which"]),
    ],
}
